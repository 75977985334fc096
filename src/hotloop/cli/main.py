"""`hotloop VERB ...`: finds the verb's file, reads its arguments, runs it, sets the exit code."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any, Protocol

from hotloop import __version__
from hotloop._util.errors import HotloopError
from hotloop.cli.renamed_flags import check_flags

# verb -> what it does; hotloop/cli/<verb>.py holds `Arguments` and `run(arguments) -> int`
VERBS = {
    "run": "record a training script, unmodified, and explain it",
    "show": "print where the time of a capture went, as a tree",
    "report": "explain a capture: what limits training, what would help, by how much",
    "top": "watch a running job",
    "diff": "set two captures side by side",
    "compare": "run A and B in turn and say which is faster, with an interval",
    "try": "switch safe patches on and off inside a running script and say which help",
    "lab": "run a plan of suspects, sweeps and sizes, and rank them",
    "scale": "fit how the time grows with the amount of work",
    "prove": "test a recommendation: predicted against measured",
    "train": "train a reference pipeline under the profiler and explain it",
    "tune": "find the fastest settings for this machine, measured, and compare them with yours",
    "doctor": "say what this machine grants training and where to start",
}


class Verb(Protocol):
    """What a verb's file offers."""

    Arguments: type[Any]

    def run(self, arguments: Any) -> int:
        """Do it; returns the exit code."""


def main(words: list[str] | None = None) -> int:
    """Entry point of the `hotloop` command."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"hotloop {__version__}")
        return 0
    name = words[0]
    if name not in VERBS:
        return complain(f"There is no verb {name!r}; there is {', '.join(VERBS)}. Try: hotloop --help")
    verb: Verb = importlib.import_module(f"hotloop.cli.{name}")
    try:
        arguments = read_arguments(verb, name, words[1:])
        return 0 if arguments is None else verb.run(arguments)
    except HotloopError as error:
        return complain(str(error))
    except BrokenPipeError:  # `hotloop show | head`
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        return 130


def read_arguments(verb: Verb, name: str, words: list[str]) -> Any:
    """The verb's arguments; where it sets `TAKES_COMMAND`, all after `--` is `command`, untouched.

    With a function `command_starts(words)` it may also begin without `--`. A verb with a function
    `read(words)` reads them itself; None when it has said all there was to say.
    """
    import tyro

    if hasattr(verb, "read"):
        return verb.read(words)

    own, command = words, None
    starts = verb.command_starts(words) if hasattr(verb, "command_starts") else None
    if starts is not None:
        own, command = words[:starts], tuple(words[starts:])
    elif getattr(verb, "TAKES_COMMAND", False) and "--" in words:
        at = words.index("--")
        own, command = words[:at], tuple(words[at + 1 :])
    check_flags(name, own)
    arguments = tyro.cli(verb.Arguments, args=own, prog=f"hotloop {name}", description=verb.Arguments.__doc__)
    return arguments if command is None else dataclasses.replace(arguments, command=command)


def complain(sentence: str) -> int:
    """One sentence on stderr, exit code 2."""
    print(f"hotloop: {sentence}", file=sys.stderr)
    return 2


def usage() -> str:
    """What `hotloop --help` prints."""
    verbs = "\n".join(f"  {name:<10} {what}" for name, what in VERBS.items())
    return (
        "usage: hotloop VERB [arguments]\n\n"
        "Finds the hot loop of an RL training run.\n\n"
        f"verbs:\n{verbs}\n\n"
        "hotloop VERB --help says more. Exit codes: 0 ok, 1 our failure, 2 usage, 3 regression and\n"
        "4 undecided (only with --fail-if), 5 your script failed, 130 interrupted.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
