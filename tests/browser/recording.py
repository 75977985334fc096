"""`make screenshots`: docs/images/terminal.svg, a terminal in which hotloop run and try really ran.

The commands run in a terminal of 80 columns (a pty). What they printed becomes lines of an SVG that shows one
page after another; long output is cut, and says so. The picture has no scripts and loads nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS, ROWS = 80, 26
SCRIPT = """\
import gc
from collections import deque
from random import random, sample

import gymnasium
import torch
from torch import nn

torch.set_num_threads(1)
env = gymnasium.make("CartPole-v1")
network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
memory = deque(maxlen=10_000)

state, _ = env.reset(seed=0)
for step in range(5000):
    if random() < 0.1:
        action = env.action_space.sample()
    else:
        action = network(torch.tensor(state)).argmax().item()
    following, reward, terminated, truncated, _ = env.step(action)
    memory.append((state, action, reward, following, terminated))
    state = following
    if terminated or truncated:
        state = env.reset()[0]
        gc.collect()
    if len(memory) >= 128:
        states, actions, rewards, nexts, ends = zip(*sample(memory, 128))
        with torch.no_grad():
            best = target(torch.tensor(nexts)).max(dim=1).values
        wanted = torch.tensor(rewards) + 0.99 * best * ~torch.tensor(ends)
        values = network(torch.tensor(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        loss = nn.functional.mse_loss(values, wanted.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 200 == 0:
        target.load_state_dict(network.state_dict())
"""
# What is typed, and how many lines of its output are shown.
COMMANDS = (("hotloop run train.py", 77), ("hotloop try --only gc --budget 40s --stop train.py", 25))
CELL, LINE, FONT = 7.8, 17.0, 13.0  # pixels
MARGIN, BAR = 14.0, 26.0
PAGE_S = 4.0
CONSOLE = Console(width=COLUMNS)
STYLE = """
rect.window{fill:#1b1c1f;stroke:#303136} circle{fill:#4a4b50}
text{fill:#eceae6;white-space:pre;
font:13px ui-monospace,"SF Mono","Cascadia Code",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.b{font-weight:700} .d{opacity:.6}
"""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and what a terminal showed of it."""

    command: str
    lines: Sequence[Text]


def main() -> int:
    """Run the commands and write the picture."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "train.py").write_text(SCRIPT)
        typed = []
        for command, shown in COMMANDS:
            lines = terminal_lines(run_in_terminal(command, folder))
            typed.append(Typed(command, cut(without_script_output(lines), shown)))
    FILE.write_text(svg(typed), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)} ({FILE.stat().st_size >> 10} KiB)")
    return 0


def run_in_terminal(command: str, folder: Path) -> bytes:
    """What the command prints to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "OMP_NUM_THREADS")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment |= {"PATH": path, "TERM": "xterm-256color"}
    job = subprocess.Popen(
        command.split(), cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while some := os.read(ours, 65536):
            printed += some
    os.close(ours)
    job.wait()
    return printed.replace(sys.executable.encode(), b"python")  # not where it happens to be on this machine


def terminal_lines(printed: bytes) -> list[Text]:
    """The lines that are left on the screen: what was written over, such as progress, is gone."""
    lines = []
    for raw in printed.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"):
        left = re.split(r"\r|\x1b\[\d*K", raw)
        kept = next((part for part in reversed(left) if re.sub(r"\x1b\[[\d;]*m", "", part).strip()), "")
        lines.append(kept)
    return list(AnsiDecoder().decode("\n".join(lines)))


def without_script_output(lines: Sequence[Text]) -> list[Text]:
    """hotloop's part of the output, with one line instead of what the script printed before it."""
    rules = [n for n, line in enumerate(lines) if line.plain.startswith("─" * 20)]
    first = rules[0] if rules else 0
    blank = [n for n in range(first) if not lines[n].plain.strip()]
    for start in blank:
        if all("|" not in line.plain for line in lines[start:first]):
            return [Text("(what train.py prints)", style="dim"), *lines[start:]]
    return list(lines)


def cut(lines: Sequence[Text], shown: int) -> list[Text]:
    """The first `shown` lines; the last of them says how many more there were."""
    if len(lines) <= shown:
        return list(lines)
    return [*lines[: shown - 1], Text(f"... {len(lines) - shown + 1} more lines", style="dim")]


def svg(typed: Sequence[Typed]) -> str:
    """The picture: a window of ROWS lines that shows one page after another."""
    rows: list[str] = []
    pages: list[int] = []  # the first row of each page
    for part in typed:
        first = len(rows)
        prompt = Text.assemble(("$ ", Style(color="bright_red", bold=True)), (part.command, Style(bold=True)))
        rows += [row(line, first + n) for n, line in enumerate([prompt, *part.lines])]
        while len(rows) % ROWS:
            rows.append("")
        pages += range(first, len(rows), ROWS)
    width = COLUMNS * CELL + 2 * MARGIN
    height = BAR + ROWS * LINE + MARGIN
    words = " and ".join(part.command for part in typed)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'width="{width:g}" height="{height:g}">',
            f"<title>A terminal: {escape(words)}</title>",
            f"<style>{STYLE}{scrolling(pages)}</style>",
            f'<rect class="window" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="9"/>',
            *(f'<circle cx="{MARGIN + 4 + 16 * n:g}" cy="14" r="4.5"/>' for n in range(3)),
            f'<svg x="{MARGIN:g}" y="{BAR:g}" width="{COLUMNS * CELL:g}" height="{ROWS * LINE:g}">',
            '<g class="pages">',
            *(line for line in rows if line),
            "</g></svg></svg>",
            "",
        ]
    )


def scrolling(pages: Sequence[int]) -> str:
    """Keyframes that jump from page to page; the first one stays for readers who want no motion."""
    share = 100 / len(pages)
    frames = [
        f"{n * share:.2f}%,{(n + 1) * share - 0.01:.2f}%{{transform:translateY({-first * LINE:g}px)}}"
        for n, first in enumerate(pages)
    ]
    return (
        f".pages{{animation:pages {len(pages) * PAGE_S:g}s step-end infinite}}\n"
        f"@keyframes pages{{{''.join(frames)}}}\n"
        "@media (prefers-reduced-motion:reduce){.pages{animation:none}}\n"
    )


def row(line: Text, number: int) -> str:
    """One line of the terminal, its columns where a terminal has them whatever the font."""
    parts = []
    at = 0
    for segment in line.render(CONSOLE):
        text = segment.text.rstrip("\n")
        stripped = text.strip()
        if stripped:
            x = (at + len(text) - len(text.lstrip())) * CELL
            look = _look(segment.style)
            place = f'x="{x:g}" textLength="{len(stripped) * CELL:g}" lengthAdjust="spacingAndGlyphs"'
            parts.append(f"<tspan {place}{look}>{escape(stripped)}</tspan>")
        at += len(text)
    return f'<text y="{number * LINE + FONT:g}">{"".join(parts)}</text>' if parts else ""


def _look(style: Style | None) -> str:
    if style is None:
        return ""
    names = [name for name, on in (("b", style.bold), ("d", style.dim)) if on]
    colour = style.color.get_truecolor().hex if style.color is not None and not style.color.is_default else ""
    return (f' class="{" ".join(names)}"' if names else "") + (f' fill="{colour}"' if colour else "")


if __name__ == "__main__":
    sys.exit(main())
