"""`hotloop lab new`: a commented plan for the script of a capture, with its recommendations as suspects."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.findings import Recommendation
from hotloop.workflows.report import report_on

MOST_BY_HAND = 6
_HEAD = """\
# Suspects for: {shown}
# Run it with:  hotloop lab run {file}
# Every run is a fresh process; each block runs the command as it is and every suspect once, in random
# order and with the same seed ({{seed}} in the command, HOTLOOP_SEED and PYTHONHASHSEED in the environment).

name = {name}
command = {command}
budget = "10m"      # for all runs together
tolerance = "3%"    # differences below this do not matter
# timeout = "5m"    # for one run
# seeds = [0, 1, 2] # used in turn; 0, 1, 2, ... when not given
"""
_DEFAULT = """
[[suspects]]
name = "one compute thread"
environment = { OMP_NUM_THREADS = "1", MKL_NUM_THREADS = "1" }
expected = "faster with small networks or many processes, slower with large ones"
safety = "safe"     # same results
"""
_TAIL = """
# More of your own: `set` puts settings into the command (--lr 0.001, or lr=0.001, or {lr}).
# [[suspects]]
# name = "larger batches"
# set = { batch-size = 256 }
# expected = "faster by 10 %"
# safety = "semantic" # may change learning

# One setting over several values:
# [[sweeps]]
# setting = "num-envs"
# values = [1, 2, 4, 8]

# How the time grows with the work: write {n} into the command where the amount of work goes.
# [scale]
# sizes = [1000, 2000, 4000]
# repeats = 3
"""


def new_plan(capture: str | None, file: Path, force: bool = False) -> int:
    """Write a plan to `file`; returns how many suspects it has."""
    if file.exists() and not force:
        raise HotloopError(f"{file} exists; choose another name, or replace it with --force.")
    run = report_on(capture)
    if not run.capture.command:
        raise HotloopError(f"{run.name} does not say which command was recorded; write the plan by hand.")
    command = with_seed(run.capture.command)
    text, suspects = plan_text(command, file, run.findings.recommendations)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another place.") from error
    return suspects


def plan_text(command: list[str], file: Path, recommendations: tuple[Recommendation, ...]) -> tuple[str, int]:
    """The plan as commented TOML, and how many suspects it has."""
    head = _HEAD.format(
        shown=_comment(shlex.join(command)),
        file=shlex.quote(str(file)),
        name=_quoted(file.stem),
        command="[" + ", ".join(_quoted(word) for word in command) + "]",
    )
    ready = [r for r in recommendations if _variables(r)]
    parts = [head, *(_suspect(r) for r in ready)] if ready else [head, _DEFAULT]
    flags = [r for r in recommendations if r.provable_by == "flag" and not _variables(r)]
    parts += [_flag(r) for r in flags]
    by_hand = [r for r in recommendations if r not in ready and r not in flags and r.rule != "leave-alone"]
    if by_hand:
        lines = [f"# {_comment(r.title)} ({_comment(r.how_to_change)})" for r in by_hand[:MOST_BY_HAND]]
        parts.append(
            "\n# Not testable by a setting; compare two revisions of your code:\n" + "\n".join(lines) + "\n"
        )
    return "".join([*parts, _TAIL]), max(len(ready), 1)


def with_seed(command: list[str]) -> list[str]:
    """The command with its seed as {seed}: `--seed 3`, `--seed=3` and `seed=3` are known."""
    words = list(command)
    for at, word in enumerate(words):
        if re.fullmatch(r"-{0,2}(random[_-])?seed=\d+", word):
            words[at] = word.partition("=")[0] + "={seed}"
        elif (
            re.fullmatch(r"--?(random[_-])?seed", word) and words[at + 1 : at + 2] and words[at + 1].isdigit()
        ):
            words[at + 1] = "{seed}"
    return words


def _variables(found: Recommendation) -> dict[str, str]:
    for variant in found.plan.get("variants", ()):
        if variant.get("environment"):
            return {str(k): str(v) for k, v in variant["environment"].items()}
    return {}


def _suspect(found: Recommendation) -> str:
    variables = ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in _variables(found).items())
    return (
        f"\n# {_comment(found.title)}\n[[suspects]]\nname = {_quoted(found.rule)}\n"
        f"environment = {{ {variables} }}\nexpected = {_quoted(_expected(found))}\n"
        f"safety = {_quoted(found.safety)}\n"
    )


def _flag(found: Recommendation) -> str:
    return (
        f"\n# {_comment(found.title)}: say which setting of your script does it.\n# [[suspects]]\n"
        f'# name = {_quoted(found.rule)}\n# set = {{ FLAG = "VALUE" }}   # {_comment(found.how_to_change)}\n'
        f"# expected = {_quoted(_expected(found))}\n# safety = {_quoted(found.safety)}\n"
    )


def _expected(found: Recommendation) -> str:
    gain = found.gain
    return f"x{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]" if gain else "not predicted"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _comment(text: str) -> str:
    """Foreign text that stays on its comment line."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
