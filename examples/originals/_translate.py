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
        "--output": "--folder",
        "--data": "--data",
    },
    "mario": {
        "--epochs": "--stop-at-epochs",
    },
}


# The originals named pickle files here; ours are folders.
PATHS = {"imitate": ("--output", "--data")}


def translate(workload: str, words: list[str]) -> list[str]:
    """The words with the flags of the original scripts replaced by ours; both `--a 1` and `--a=1` work."""
    table, paths = FLAGS[workload], PATHS.get(workload, ())
    translated: list[str] = []
    path_follows = False
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if path_follows:
            translated.append(folder_of(word))
        elif flag in paths and equals:
            translated.append(f"{table[flag]}={folder_of(value)}")
        else:
            translated.append(table.get(flag, word.partition("=")[0]) + equals + value)
        path_follows = flag in paths and not equals and not path_follows
    return translated


def has_flag(words: list[str], *flags: str) -> bool:
    """Whether a flag is given, as `--a 1`, `--a=1` or with underscores."""
    return any(word.partition("=")[0].replace("_", "-") in flags for word in words)


def folder_of(path: str) -> str:
    """The folder that stands for a pickle file of the original scripts: its name without the suffix."""
    folder = path.removesuffix(".pkl").removesuffix(".pickle").removesuffix(".zip").removesuffix(".pt")
    if not folder:
        print(f"hotloop: {path!r} names no folder for the episodes or the agent; name one.", file=sys.stderr)
        sys.exit(2)
    if folder != path:
        print(
            f"hotloop: {path} stands for the folder {folder}: its episodes are npz files and its agents "
            "safetensors files; nothing is pickled, and pickles are not read",
            file=sys.stderr,
        )
    return folder


def train(workload: str, words: list[str]) -> int:
    """Run `hotloop train WORKLOAD`; returns its exit code."""
    return main(["train", workload, *translate(workload, words)])


if __name__ == "__main__":
    sys.exit(train(sys.argv[1], sys.argv[2:]))
