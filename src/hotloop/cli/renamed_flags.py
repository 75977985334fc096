"""Flags that earlier versions had: typing one gives a sentence that names today's flag."""

from __future__ import annotations

from hotloop._util.errors import HotloopError

# "verb" or "train workload" -> {old flag: what to type today}
RENAMED: dict[str, dict[str, str]] = {
    "train snake": {
        "--episodes": "--stop-at-episodes",
        "--steps": "--total-timesteps",
        "--envs": "--n-envs",
        "--updates": "--gradient-steps with --train-freq",
        "--training": "--gradient-steps 0",
        "--capacity": "--buffer-size",
        "--flood-every": "--flood-every-steps",
        "--learning-check": "--learning-check-steps",
        "--metrics": "--tensorboard-log",
    },
}


def check_flags(where: str, words: list[str]) -> None:
    """Raise HotloopError for the first word that is a flag of an earlier version."""
    renamed = RENAMED.get(where, {})
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag in renamed:
            raise HotloopError(f"{flag} is now {renamed[flag]}; see: hotloop {where} --help")
