"""`hotloop whatif CAPTURE 'env_step=2x' ...`: what changes would give, from one capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop._util.errors import HotloopError
from hotloop._util.visible import visible
from hotloop.analysis.standstills import without_standstills
from hotloop.analysis.what_ifs import LimitingRole, Prediction, WhatIfs, parse_change
from hotloop.capture.folder import latest_capture
from hotloop.capture.open_capture import open_capture

MOST_SUGGESTED = 5


@dataclass(frozen=True, slots=True)
class WhatIfAnswers:
    """What limits training now, and what the changes would give."""

    capture: str
    limit: LimitingRole
    straggler: str  # "" if there is none
    predictions: tuple[Prediction, ...]
    together: Prediction | None  # all changes at once, when there are several
    warnings: tuple[str, ...] = ()  # about the capture


def what_if(path: str | None, changes: Sequence[str]) -> WhatIfAnswers:
    """Answer each change by itself and all of them together; without any, the largest regions twice as fast.

    Raises HotloopError for a change that is not understood, and for unknown regions and settings.
    """
    parsed = [parse_change(text) for text in changes]
    name = str(latest_capture()) if path is None else path
    capture, _ = without_standstills(open_capture(name))
    if not capture.processes:
        raise HotloopError(f"{name} has no recorded process to predict from; record a run first.")
    model = WhatIfs(capture)
    if not parsed:
        parsed = [parse_change(f"{region}=2x") for region in model.worth_asking[:MOST_SUGGESTED]]
    predictions = tuple(model.predict([change]) for change in parsed)
    together = model.predict(parsed) if len(parsed) > 1 and changes else None
    return WhatIfAnswers(
        name, model.limit, model.straggler, predictions, together, tuple(map(visible, capture.all_warnings))
    )
