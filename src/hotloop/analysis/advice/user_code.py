"""Whose time a sample is: the user's code itself, a framework that it called, or training as such."""

from __future__ import annotations

from hotloop.capture.samples import SampledPath

FRAMEWORKS = (
    *("torch", "gymnasium", "gym", "stable_baselines3", "sb3_contrib", "torchrl", "tensordict", "tianshou"),
    "pufferlib",
    *("lightning", "pytorch_lightning", "jax", "jaxlib", "flax", "ray", "numba"),
)
NETWORKS = ("torch.nn", "torch.optim", "torch.autograd", "torch.distributions", "torch._", "jax", "flax")
# Last words of framework functions that step envs, act, learn, or run the whole of training.
TRAINING = (
    *("step", "reset", "learn", "fit", "train", "run", "backward", "forward", "predict", "collect", "update"),
    *("collect_rollouts", "rollout", "act", "__iter__", "__next__", "__call__", "wrapper", "inner", "get"),
    *("step_wait", "step_async", "get_action", "remote", "evaluate"),
)
TORCH_OPERATORS = ("torch._tensor.", "torch.functional.", "torch._ops.")  # Python around single operations


def in_user_code(path: SampledPath) -> bool:
    """Whether the time belongs to the user's code itself, and not to a framework that it called."""
    return path.line is not None and path.called.partition(".")[0] not in FRAMEWORKS


def is_training(path: SampledPath) -> bool:
    """Whether a framework does there what training is about, or runs the whole of it."""
    called = path.called
    return called.startswith(NETWORKS) or called.rpartition(".")[2] in TRAINING


def is_part_of_idiom(path: SampledPath, library_calls: tuple[str, ...]) -> bool:
    """Whether an idiom explains the time: it is the user's code, or a library call that is part of it."""
    return (
        in_user_code(path)
        or (path.called.startswith(TORCH_OPERATORS) and not path.called.endswith(".backward"))
        or any(name in path.called for name in library_calls)
    )
