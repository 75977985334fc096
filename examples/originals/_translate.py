"""Runs `hotloop train WORKLOAD` with the flags of the original scripts, translated to ours.

A flag that is not in the table is passed on as it is, so every flag of `hotloop train WORKLOAD` works too.
"""

import sys

from hotloop.cli.main import main

# workload -> {flag of the original scripts: ours}
FLAGS = {
    "ricochet": {
        "--obs-mode": "--obs-mode",
        "--convlstm": "--convlstm",
        "--timesteps": "--total-timesteps",
        "--enable-profiling": "--enable-profiling",
        "--profiling-report": "--profiling-report",
        "--profiling-summary-freq": "--profiling-summary-freq",
    },
    "petri": {
        "--turbo": "--turbo",
        "--no-turbo": "--no-turbo",
        "--compare": "--compare",
        "--batches": "--batches",
        "--breakdown": "--breakdown",
        "--detailed": "--detailed",
    },
    "snake": {
        "--episodes": "--stop-at-episodes",
        "--envs": "--n-envs",
    },
    "imitate": {
        "--episodes": "--n-episodes",
        "--workers": "--workers",
        "--epochs": "--n-epochs",
        "--timesteps": "--total-timesteps",
        "--envs": "--n-envs",
        "--batch-size": "--batch-size",
    },
    "mario": {
        "--epochs": "--stop-at-epochs",
    },
}


def translate(workload: str, words: list[str]) -> list[str]:
    """The words with the flags of the original scripts replaced by ours; both `--a 1` and `--a=1` work."""
    table = FLAGS[workload]
    translated = []
    for word in words:
        flag, equals, value = word.partition("=")
        translated.append(table.get(flag.replace("_", "-"), flag) + equals + value)
    return translated


def has_flag(words: list[str], *flags: str) -> bool:
    """Whether a flag is given, as `--a 1`, `--a=1` or with underscores."""
    return any(word.partition("=")[0].replace("_", "-") in flags for word in words)


def train(workload: str, words: list[str]) -> int:
    """Run `hotloop train WORKLOAD`; returns its exit code."""
    return main(["train", workload, *translate(workload, words)])


if __name__ == "__main__":
    sys.exit(train(sys.argv[1], sys.argv[2:]))
