"""Flags that earlier versions had: typing one gives a sentence that names today's flag."""

from __future__ import annotations

from hotloop._util.errors import HotloopError

# "verb" or "train workload" -> {old flag: what to type today}
RENAMED: dict[str, dict[str, str]] = {
    "train ricochet": {
        "--timesteps": "--total-timesteps",
        "--envs": "--n-envs",
        "--rollout-steps": "--n-steps",
        "--epochs": "--n-epochs",
        "--discount": "--gamma",
        "--entropy-weight": "--ent-coef",
        "--hidden": "--net-arch",
        "--episode-steps": "--max-episode-steps",
        "--evaluation-boards": "--n-eval-episodes",
    },
    "train petri": {
        "--timesteps": "--total-timesteps",
        "--envs": "--n-envs",
        "--frames-per-batch": "--n-steps (of each environment)",
        "--epochs": "--n-epochs",
        "--minibatch": "--batch-size",
        "--entropy-weight": "--ent-coef",
        "--n-hidden": "--net-arch (the width of each hidden layer)",
        "--n-layer": "--net-arch (the width of each hidden layer)",
        "--metrics": "--tensorboard-log",
    },
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
    "train imitate": {
        "--episodes": "--n-episodes",
        "--epochs": "--n-epochs",
        "--timesteps": "--total-timesteps",
        "--envs": "--n-envs",
        "--updates": "--train-freq and --gradient-steps (-1 for one update per env step)",
        "--n-hidden": "--net-arch with the width of each hidden layer",
        "--n-layer": "--net-arch with the width of each hidden layer",
        "--metrics": "--tensorboard-log",
    },
    "train mario": {
        "--epochs": "--stop-at-epochs, or --total-timesteps",
        "--collectors": "--n-collectors",
        "--envs": "--envs-per-collector",
        "--ring": "--queue-size",
        "--drop": "--drop-when-full",
        "--weights-every": "--weights-every-epochs",
        "--capacity": "--buffer-size",
        "--accumulate": "--accumulate-grad-batches",
        "--learn-per-step": "--replay-ratio",
        "--learning-rate-end": "--final-learning-rate",
        "--discount": "--gamma",
        "--n-step": "--n-steps",
        "--target-every": "--target-every-updates",
        "--epsilon-start": "--exploration-initial-eps",
        "--epsilon-end": "--exploration-final-eps",
        "--epsilon-steps": "--exploration-steps",
        "--norm": "--batch-norm",
        "--no-norm": "--no-batch-norm",
        "--norm-momentum": "--batch-norm-momentum",
        "--hidden": "--features-dim",
        "--hang-timeout": "--hang-timeout-s",
        "--play": "--n-eval-episodes",
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
