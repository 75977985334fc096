"""Stable-Baselines3 and sb3-contrib: rollouts, training, vector envs, policies, buffers, callbacks, logger.

Each patch function runs once, when its module has been imported. Classes of sb3-contrib and of the user
derive from the same bases, so they are patched from here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import process_facts, step_counting
from hotloop.instrument.acting_or_learning import FORWARD, learner_forward, policy_forward, policy_value
from hotloop.instrument.method_patches import (
    defines,
    patch_below,
    patch_outermost,
    traceable,
    without_counting,
)
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.torch import checkpoint, optimizer_step
from hotloop.instrument.update_counting import begin_training
from hotloop.measure.decorate import decorate
from hotloop.measure.profiler import default

_profile = default.profile
env_step = _profile("env_step")
env_reset = _profile("env_reset")
env_render = _profile("env_render")
env_close = _profile("env_close", "environment")
learn = _profile("learn", "framework")
collect_rollouts = _profile("collect_rollouts", "framework")
train = _profile("train", "framework")
sample_action = _profile("sample_action", "policy")
replay_push = _profile("replay_push")
replay_sample = _profile("replay_sample")
advantage = _profile("advantage")
callback = _profile("callback", "framework")
log = _profile("log")
evaluate = _profile("evaluate")
NETWORK_CALLS = (*FORWARD, optimizer_step)


# -- vector envs ---------------------------------------------------------------------------------


def patch_vec_env(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.vec_env.base_vec_env`: every `VecEnv`, existing and future."""
    base = module.VecEnv

    def methods(cls: type) -> Iterable[Patch]:
        if cls is base:  # almost every class inherits this `step`; the parts below it have the class's name
            yield patch_outermost(cls, "step", env_step, _count_rows)
        elif defines(cls, "step"):
            yield patch_below(cls, "step", env_step, "environment", _count_rows)
        if defines(cls, "step_async"):
            hand_out = _profile(f"{cls.__name__}.step_async", "environment")
            yield Patch(cls, "step_async", lambda f: hand_out.wrap(f))
        if defines(cls, "step_wait"):
            yield patch_below(cls, "step_wait", env_step, "environment", _count_rows)
        if defines(cls, "reset"):
            yield patch_below(cls, "reset", env_reset, "environment", _forget)
        if defines(cls, "render"):
            yield patch_below(cls, "render", env_render, "rendering")
        if defines(cls, "close"):  # waits for worker processes to end
            yield patch_outermost(cls, "close", env_close)

    into.apply([follow_subclasses(base, methods, into)])


def patch_subprocesses(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.vec_env.subproc_vec_env`: workers do not count their steps."""
    into.apply([Patch(module, "_worker", without_counting)])


def _monitor_sums(env: Any, result: Any, rows: list[int]) -> tuple[float, float] | None:
    """Sums of returns and lengths of the episodes that ended in these rows; None without a Monitor."""
    episodes = [result[3][row].get("episode") for row in rows]
    if not all(episodes):
        return None
    return sum(float(e["r"]) for e in episodes), sum(float(e["l"]) for e in episodes)


# A step returns (observations, rewards, dones, infos) and has already reset the rows that are done.
_count_rows = step_counting.new_counter(1, (2,), is_vector=True, episode_sums=_monitor_sums)
_forget = step_counting.forget_after_reset(_count_rows)


# -- algorithms and policies ---------------------------------------------------------------------


def patch_algorithms(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.base_class`: every algorithm, existing and future."""
    names = {
        "learn": learn,
        "collect_rollouts": collect_rollouts,
        "train": train,
        "_sample_action": sample_action,
        "save": checkpoint,
        "save_replay_buffer": checkpoint,
    }

    def methods(cls: type) -> Iterable[Patch]:
        for name, region in names.items():
            if defines(cls, name):
                yield patch_outermost(cls, name, region)
        if defines(cls, "_setup_learn"):
            yield Patch(cls, "_setup_learn", _beginning_training)

    into.apply([follow_subclasses(module.BaseAlgorithm, methods, into)])


def _beginning_training(setup: Callable[..., Any]) -> Callable[..., Any]:
    def run(model: Any, *args: Any, **kwargs: Any) -> Any:
        begin_training()
        with suppress_own(Exception):
            _note_model(model)
        return setup(model, *args, **kwargs)

    return run


_models: list[dict[str, str]] = []  # that began to learn in this process


def _note_model(model: Any) -> None:
    """Write the classes of a model into the capture; advice depends on them."""
    about = {
        "algorithm": f"{type(model).__module__}.{type(model).__qualname__}",
        "policy": type(model.policy).__name__,
        "features_extractor": type(getattr(model.policy, "features_extractor", None)).__name__,
        "device": str(model.device.type),
        "action_space": type(model.action_space).__name__,
        "use_sde": str(bool(getattr(model, "use_sde", False))),
    }
    actor = getattr(model.policy, "actor", None) or getattr(model.policy, "q_net", None)
    if actor is not None:  # of off-policy algorithms, which have one for each network
        about["features_extractor"] = type(actor.features_extractor).__name__
    if about not in _models:
        _models.append(about)
        process_facts.note("models", list(_models))


def patch_policies(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.policies`: every policy and network, existing and future.

    Inside `train`, a forward pass without gradients (of a target network) belongs to the learner.
    """
    torch = sys.modules["torch"]
    call = torch.nn.Module.__call__

    def patch(cls: type, name: str, acting: Any, method: Callable[..., Any] | None = None) -> Patch:
        """A forward pass: `acting` while collecting, else the learner's; below it the name of the class."""
        label = f"{cls.__name__}.{name if method is None else 'forward'}"
        learning, collecting = _profile(label, "model"), _profile(label, "policy")

        def make(f: Callable[..., Any]) -> Any:
            return learning.wrap(
                method or f,
                outer=learner_forward,
                no_outer_inside=NETWORK_CALLS,
                choose=torch.is_grad_enabled,
                always=(train,),
                otherwise=collecting,
                otherwise_outer=acting,
            )

        return traceable(Patch(cls, name, make), method)

    def methods(cls: type) -> Iterable[Patch]:
        # `__call__` of each class, not only of the base, so that the region below has the name of the class.
        yield patch(cls, "__call__", policy_forward, call)
        if hasattr(cls, "predict"):  # it disables gradients only inside
            yield _predict(cls)
        for name in ("evaluate_actions", "get_distribution", "action_log_prob", "q1_forward"):
            if defines(cls, name):
                yield patch(cls, name, policy_forward)
        if defines(cls, "predict_values"):
            yield patch(cls, "predict_values", policy_value)

    into.apply([follow_subclasses(module.BaseModel, methods, into)])


def _predict(cls: type) -> Patch:
    """`predict`, inherited or not, under the name of the class; it is always acting."""
    asked = _profile(f"{cls.__name__}.predict", "policy")
    inherited = not defines(cls, "predict")

    def make(f: Callable[..., Any]) -> Any:
        plain = getattr(f, "__wrapped__", f) if inherited else f
        return asked.wrap(plain, outer=policy_forward, skip_inside=NETWORK_CALLS)

    return traceable(Patch(cls, "predict", make))


# -- buffers -------------------------------------------------------------------------------------


def patch_buffers(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.buffers`: every buffer, existing and future."""

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "add"):
            yield patch_below(cls, "add", replay_push, "replay")
        if defines(cls, "sample"):
            yield patch_below(cls, "sample", replay_sample, "replay")
        if defines(cls, "_get_samples"):
            yield patch_outermost(cls, "_get_samples", replay_sample)
        if defines(cls, "get"):  # a generator, whose first resumption also flattens the whole buffer
            drawn = _profile(f"{cls.__name__}.get", "replay")
            yield Patch(cls, "get", lambda f: decorate(drawn, f))
        if defines(cls, "compute_returns_and_advantage"):
            yield patch_below(cls, "compute_returns_and_advantage", advantage, "advantage")

    into.apply([follow_subclasses(module.BaseBuffer, methods, into)])


# -- callbacks, logger, evaluation ---------------------------------------------------------------

_HOLLOW = ("ConvertCallback", "CallbackList", "EventCallback")  # only pass calls on


def patch_callbacks(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.callbacks`: every callback, existing and future."""
    base = module.BaseCallback

    def methods(cls: type) -> Iterable[Patch]:
        if cls is base:
            for name in ("on_training_start", "on_rollout_start", "on_step", "on_rollout_end"):
                yield patch_outermost(cls, name, callback)
        elif cls.__name__ not in _HOLLOW and defines(cls, "_on_step"):
            yield patch_below(cls, "_on_step", callback, "framework")

    into.apply([follow_subclasses(base, methods, into)])
    patch_evaluation(module, into)  # imports the function under its own name


def patch_evaluation(module: ModuleType, into: Patches) -> None:
    """A module with `evaluate_policy`; its steps are not training and do not count."""
    if not hasattr(getattr(module, "evaluate_policy", None), "__wrapped__"):
        into.apply([patch_outermost(module, "evaluate_policy", evaluate)])


def patch_random_search(module: ModuleType, into: Patches) -> None:
    """`sb3_contrib.ars.ars`: it trains by evaluating, so these steps count."""

    def training(f: Callable[..., Any]) -> Callable[..., Any]:
        plain = getattr(f, "__wrapped__", f)
        made: Callable[..., Any] = collect_rollouts.wrap(plain, skip_inside=(collect_rollouts,))
        return made

    into.apply([Patch(module, "evaluate_policy", training)])


def patch_logger(module: ModuleType, into: Patches) -> None:
    """`stable_baselines3.common.logger`."""
    into.apply(
        [patch_outermost(module.Logger, name, log) for name in ("record", "record_mean", "dump", "log")]
    )
