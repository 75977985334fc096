"""One colour for each category, the same in the terminal, the HTML page and every chart.

The colours differ as much as twenty colours can, with normal vision and with the three kinds of colour
blindness (tests/unit/test_palette.py measures it), and stand out on white and on near black. No chart
relies on colour alone: every one also names its categories in text.
"""

from __future__ import annotations

CATEGORY_COLOURS: dict[str, str] = {
    "environment": "#0072b2",
    "rendering": "#3db9f0",
    "policy": "#0f9d61",
    "model": "#ec5a1a",
    "loss": "#b488c9",
    "backward": "#972d74",
    "optimizer": "#f59b0f",
    "advantage": "#7034cf",
    "replay": "#b5151a",
    "data": "#62941a",
    "transfer": "#d8b25e",
    "ipc": "#62af84",
    "wait": "#2f5aa3",
    "logging": "#8f6450",
    "evaluation": "#8dc28f",
    "checkpoint": "#79523f",
    "compilation": "#9721fd",
    "framework": "#c55ae6",
    "other": "#8a8f98",
    "unattributed": "#b4b8bf",
    "hotloop": "#6d7178",
}
# What a thread did, whatever it is for.
STATE_COLOURS: dict[str, str] = {
    "running": "#0f9d61",
    "ready": "#f59b0f",
    "waiting": "#3b6fc4",
    "gil": "#972d74",
    "blocked": "#b5151a",
    "unknown": "#b4b8bf",
}
FALLBACK_COLOUR = "#8a8f98"  # for categories defined by the user


def colour_of(category: str) -> str:
    """The category's colour as `#rrggbb`."""
    return CATEGORY_COLOURS.get(category, FALLBACK_COLOUR)
