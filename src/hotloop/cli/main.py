"""`hotloop VERB ...`: imports the module of the verb, parses its arguments, runs it."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import sys
from typing import Any, Protocol

from hotloop._util import HOTLOOP_VERSION, early_interrupt
from hotloop._util.console import guarded
from hotloop._util.errors import HotloopError
from hotloop.cli.renamed_flags import check_flags
from hotloop.workflows.project_settings import apply_redaction

# verb -> its module in hotloop/cli/, with `Arguments` and `run(arguments) -> int`, and what it does
VERBS = {
    "run": ("hotloop.cli.run", "record an unmodified training script and explain it"),
    "show": ("hotloop.cli.show", "print where the time of a capture went, as a tree"),
    "report": ("hotloop.cli.report", "explain a capture: what limits training, what would help, by how much"),
    "top": ("hotloop.cli.top", "watch a running job"),
    "attach": ("hotloop.cli.attach", "watch a job that was started without hotloop, from outside"),
    "serve": ("hotloop.cli.serve", "show the runs of a folder in the browser, live ones too"),
    "diff": ("hotloop.cli.diff", "show two captures side by side"),
    "compare": ("hotloop.cli.compare", "run A and B in turn and say which is faster, with an interval"),
    "try": ("hotloop.cli.trial", "try safe patches inside a running script and say which help"),
    "boost": ("hotloop.cli.boost", "run a Stable-Baselines3 script on compiled learners, checked as it runs"),
    "whatif": ("hotloop.cli.whatif", "predict what changes would give, by replaying a capture"),
    "lab": ("hotloop.cli.lab", "run a plan of suspects, sweeps and sizes, and rank them"),
    "scale": ("hotloop.cli.scale", "fit how time grows with size"),
    "bisect": ("hotloop.cli.bisect", "find the commit that made training slower"),
    "prove": ("hotloop.cli.prove", "test a recommendation: predicted and measured speed-up"),
    "train": ("hotloop.cli.train", "train a reference pipeline under the profiler and explain it"),
    "tune": (
        "hotloop.cli.tune",
        "search for the fastest settings on this machine and compare them with yours",
    ),
    "merge": ("hotloop.cli.merge", "join captures that several computers made of one run"),
    "doctor": ("hotloop.cli.doctor", "show what resources training gets on this machine and where to start"),
    "completion": ("hotloop.cli.completion", "print what completes verbs and options in bash, zsh or fish"),
}


class Verb(Protocol):
    """A module in `VERBS`."""

    Arguments: type[Any]

    def run(self, arguments: Any) -> int:
        """Run the verb; returns the exit code."""


def main(words: list[str] | None = None) -> int:
    """Entry point of the `hotloop` command."""
    early_interrupt.end_import()
    return guarded(lambda: run_words(list(sys.argv[1:] if words is None else words)))


def run_words(words: list[str]) -> int:
    """Run `hotloop WORDS`; returns the exit code."""
    if words[:1] == ["help"] and words[1:2]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        print(f"hotloop {HOTLOOP_VERSION}")
        return 0
    name = words[0]
    if name not in VERBS:
        raise HotloopError(unknown_verb(name))
    apply_redaction()
    verb: Verb = importlib.import_module(VERBS[name][0])
    try:
        arguments = read_arguments(verb, name, words[1:])
        if arguments is None:
            return 0
        if getattr(verb, "TAKES_VERBS", False):
            arguments = dataclasses.replace(arguments, verbs=VERBS)
        return verb.run(arguments)
    except FileNotFoundError:
        if _has_working_folder():
            raise
        raise HotloopError("The working folder was deleted; change to another one.") from None


def _has_working_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def read_arguments(verb: Verb, name: str, words: list[str]) -> Any:
    """Parse the words after the verb; None if there is nothing left to do (help was printed).

    A verb with `TAKES_COMMAND` gets everything after `--` as `command`. With `OPTIONS_WITH_VALUE` the command
    may also begin without `--`. A verb with `read(words)` parses them itself.
    """
    from hotloop.cli.parsing import parse

    if hasattr(verb, "read"):
        return verb.read(words)

    own, command = words, None
    starts = command_start(words, verb.OPTIONS_WITH_VALUE) if hasattr(verb, "OPTIONS_WITH_VALUE") else None
    if starts is not None:
        own, command = words[:starts], tuple(words[starts:])
    elif getattr(verb, "TAKES_COMMAND", False) and "--" in words:
        at = words.index("--")
        own, command = words[:at], tuple(words[at + 1 :])
    check_flags(name, own)
    tail = ""
    if getattr(verb, "TAKES_COMMAND", False):
        tail = "SCRIPT [arguments]" if hasattr(verb, "OPTIONS_WITH_VALUE") else "-- COMMAND"
    if getattr(verb, "COMMAND_IS_OPTIONAL", False):
        tail = f"[{tail}]"
    arguments = parse(verb.Arguments, own, f"hotloop {name}", tail=tail)
    return arguments if command is None else dataclasses.replace(arguments, command=command)


def command_start(words: list[str], options_with_value: tuple[str, ...]) -> int | None:
    """Index of the first word of the script's command; None if it follows `--`."""
    at = 0
    while at < len(words):
        if words[at] == "--":
            return None
        if words[at] == "-m" or not words[at].startswith("-"):
            return at
        at += 2 if words[at] in options_with_value else 1
    return None


def unknown_verb(name: str) -> str:
    """What to do instead; a file is probably the script to run."""
    if name.endswith(".py"):
        return f"{name!r} is not a verb; to record a script: hotloop run {name}"
    near = difflib.get_close_matches(name, VERBS, n=1)
    if near:
        return f"{name!r} is not a verb; did you mean: hotloop {near[0]}"
    return f"{name!r} is not a verb; use one of {', '.join(VERBS)}. See: hotloop --help"


def usage() -> str:
    from hotloop.cli.help_text import help_width, paragraphs, table

    width = help_width()
    verbs = table(((name, what) for name, (_, what) in VERBS.items()), width)
    about = (
        "See hotloop VERB --help for details. Exit codes: 0 ok, 1 failure of hotloop, 2 wrong usage, "
        "3 regression and 4 undecided (only with --fail-if), 5 your script failed, 130 interrupted."
    )
    return (
        "usage: hotloop VERB [arguments]\n\n"
        "Finds the hot loop of an RL training run.\n\n"
        f"verbs:\n{verbs}\n\n{paragraphs(about, width)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
