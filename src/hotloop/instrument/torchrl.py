"""TorchRL and tensordict: envs, collectors, step_mdp, replay, value estimators, losses, tensordict work.

Operations on tensordicts get the category `framework`, except in a replay buffer, where they count as replay.
Networks are modules on tensordicts; inside a loss or a value estimator they belong to the learner, with or
without gradients.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.acting_or_learning import (
    FORWARD,
    collector_setup,
    learner_forward,
    pick,
    policy_forward,
    settled,
)
from hotloop.instrument.method_patches import (
    defines,
    patch_below,
    patch_outermost,
    traceable,
    without_counting,
)
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.standard_library import ipc_wait
from hotloop.instrument.torch import optimizer_step
from hotloop.measure.decorate import decorate
from hotloop.measure.profiler import default

_profile = default.profile
env_step = _profile("env_step")
env_reset = _profile("env_reset")
env_close = _profile("env_close", "environment")
env_setup = _profile("env_setup", "environment")
rollout = _profile("rollout", "framework")
collect_rollouts = _profile("collect_rollouts", "framework")
step_mdp = _profile("step_mdp", "framework")
tensordict_work = _profile("tensordict", "framework")
weights_sync = _profile("weights_sync")
replay_push = _profile("replay_push")
replay_sample = _profile("replay_sample")
advantage = _profile("advantage")
loss = _profile("loss")
evaluate = _profile("evaluate")
NETWORK_CALLS = (*FORWARD, optimizer_step, collector_setup)
OPERATIONS = ("clone", "to", "select", "exclude", "update")


def _plain_call() -> Callable[..., Any]:
    """Torch's own `Module.__call__`, not our patched one."""
    module = sys.modules["torch"].nn.Module
    call: Callable[..., Any] = getattr(module, "_wrapped_call_impl", module.__call__)
    return call


# -- tensordict ----------------------------------------------------------------------------------


def patch_tensordict(module: ModuleType, into: Patches) -> None:
    """`tensordict`: copying, selecting, moving and stacking; outermost calls only."""
    torch = sys.modules["torch"]
    aside = (tensordict_work, replay_push, replay_sample)

    def counted(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        region = _profile(f"TensorDict.{name}", "framework")
        return lambda f: region.wrap(f, outer=tensordict_work, skip_inside=aside)

    todo, seen = [module.TensorDictBase], set()
    while todo:
        cls = todo.pop()
        if cls not in seen:
            seen.add(cls)
            todo += cls.__subclasses__()
            into.apply(traceable(Patch(cls, n, counted(n))) for n in OPERATIONS if defines(cls, n))
    functions = sys.modules.get("tensordict._torch_func")
    for table in ("TD_HANDLED_FUNCTIONS", "LAZY_TD_HANDLED_FUNCTIONS"):
        for name in ("stack", "cat"):
            entries = getattr(functions, table, {})
            if getattr(torch, name) in entries:
                into.apply([traceable(_Entry(entries, getattr(torch, name), counted(name)))])


class _Entry(Patch):
    """A patch of one entry of a table of functions."""

    def __init__(self, table: dict[Any, Any], key: Any, make: Callable[..., Any]):
        super().__init__(table, getattr(key, "__name__", repr(key)), make)
        self._key = key

    def _get(self) -> Any:
        return self.owner[self._key]

    def _put(self, value: Any) -> None:
        self.owner[self._key] = value


def patch_modules(module: ModuleType, into: Patches) -> None:
    """`tensordict.nn`: networks that read and write tensordicts."""
    call = _plain_call()

    def forward(f: Callable[..., Any]) -> Any:
        return learner_forward.wrap(
            f,
            skip_inside=NETWORK_CALLS,
            always=(loss, advantage),
            never=(collect_rollouts, rollout),
            otherwise=policy_forward,
            pick=pick,
            settled=settled,
        )

    into.apply(
        [
            traceable(Patch(module.TensorDictModuleBase, "__call__", lambda f: forward(call)), call),
            traceable(Patch(module.ProbabilisticTensorDictSequential, "get_dist", forward)),
        ]
    )


# -- envs ----------------------------------------------------------------------------------------


def patch_envs(module: ModuleType, into: Patches) -> None:
    """`torchrl.envs.common`: every `EnvBase`, existing and future."""
    base = module.EnvBase

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "step"):
            yield patch_outermost(cls, "step", env_step, _count)
        if defines(cls, "step_and_maybe_reset"):
            if cls is base:  # it calls `step`
                shell = _profile("step_and_maybe_reset", "framework")
                yield patch_outermost(cls, "step_and_maybe_reset", shell)
            else:
                yield patch_below(cls, "step_and_maybe_reset", env_step, "environment", _count_first)
        if defines(cls, "reset"):
            yield Patch(cls, "reset", lambda f: env_reset.wrap(_forgetting(f), skip_inside=(env_reset,)))
        if defines(cls, "rollout"):
            yield patch_outermost(cls, "rollout", rollout)
        if defines(cls, "_step"):  # workers of ParallelEnv call it without `step`
            yield patch_below(cls, "_step", env_step, "environment")
        if defines(cls, "_reset"):
            yield patch_below(cls, "_reset", env_reset, "environment")
        if defines(cls, "close"):
            yield patch_outermost(cls, "close", env_close)

    into.apply([follow_subclasses(base, lambda cls: map(traceable, methods(cls)), into)])


def patch_env_utils(module: ModuleType, into: Patches) -> None:
    """`torchrl.envs.utils`: moving on to the next step; checking an env is not training."""
    into.apply(
        [
            traceable(patch_outermost(module._StepMDP, "__call__", step_mdp)),
            traceable(patch_outermost(module, "step_mdp", step_mdp)),
            patch_outermost(module, "check_env_specs", env_setup),
        ]
    )


def patch_env_creator(module: ModuleType, into: Patches) -> None:
    """`torchrl.envs.env_creator`: creates an env, steps it once to see its data, and discards it."""
    into.apply(
        [
            patch_outermost(module.EnvCreator, "init_", env_setup),
            patch_outermost(module, "get_env_metadata", env_setup),
        ]
    )


def patch_batched_envs(module: ModuleType, into: Patches) -> None:
    """`torchrl.envs.batched_envs`: waiting for workers, which do not count their steps."""
    into.apply([patch_outermost(module.ParallelEnv, "_wait_for_workers", ipc_wait)])
    for name in ("_run_worker_pipe_shared_mem", "_run_worker_pipe_direct"):
        into.apply([Patch(module, name, without_counting)])


_observe = step_counting.new_observer(is_vector=True)
_running: dict[int, list[Any]] = {}  # id of an env -> returns and lengths of its current episodes


def _forgetting(reset: Callable[..., Any]) -> Callable[..., Any]:
    """A full reset abandons the current episodes; a reset of some rows (`_reset`) follows their end."""

    def run(self: Any, tensordict: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_full = tensordict is None or "_reset" not in tensordict.keys()  # noqa: SIM118
        if is_full:
            _running.pop(id(self), None)
        result = reset(self, tensordict, *args, **kwargs)
        if is_full and step_counting.enabled and not env_step.is_open():
            _observe.forget(self, (result,))
        return result

    return run


def _count_first(env: Any, result: Any) -> None:
    _count(env, result[0])


def _count(env: Any, result: Any) -> None:
    """Runs after the outermost step. Does not read values on an accelerator, since that would synchronise."""
    if not step_counting.enabled or evaluate.is_open() or env_setup.is_open():
        return
    width = env.batch_size.numel()
    after = result.get("next")
    _observe(env, (after, 0.0, False))
    done = after.get("done", None)
    reward = after.get("reward", None)
    if done is None or reward is None or done.device.type != "cpu" or done.numel() != width:
        default.progress(env_steps=width)
        return
    running = _running.get(id(env))
    if running is None:
        step_counting.note_env(env, width)
    if running is None or running[0].shape != done.shape:
        zeros = sys.modules["torch"].zeros(done.shape, dtype=sys.modules["torch"].float64)
        running = _running[id(env)] = [zeros, zeros.clone()]
    returns, lengths = running
    returns += reward.detach().reshape(done.shape)
    lengths += 1
    if not done.any():
        default.progress(env_steps=width)
        return
    default.progress(
        env_steps=width,
        episodes=int(done.sum()),
        episode_return=float(returns[done].mean()),
        episode_length=float(lengths[done].mean()),
    )
    returns[done] = 0
    lengths[done] = 0


# -- collectors, replay, losses ------------------------------------------------------------------


def patch_collectors(module: ModuleType, into: Patches) -> None:
    """`torchrl.collectors`: every collector, existing and future."""
    base = getattr(module, "BaseCollector", None) or module.DataCollectorBase

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "__init__"):  # calls the policy once to see its data
            yield patch_outermost(cls, "__init__", collector_setup)
        if defines(cls, "rollout"):
            yield patch_outermost(cls, "rollout", collect_rollouts)
        if defines(cls, "iterator"):  # a generator: each resumption counts as a call
            shell = _profile(f"{cls.__name__}.iterator", "framework")
            yield Patch(cls, "iterator", functools.partial(_resumed, shell))
        if defines(cls, "update_policy_weights_"):
            yield patch_outermost(cls, "update_policy_weights_", weights_sync)
        if defines(cls, "shutdown"):  # waits for worker processes to end
            yield patch_outermost(cls, "shutdown", _profile("collector_close", "framework"))

    into.apply([follow_subclasses(base, methods, into)])


def _resumed(region: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function timed at each resumption, even if a decorator hides that it is one."""

    def iterator(*args: Any, **kwargs: Any) -> Any:
        yield from f(*args, **kwargs)

    return decorate(region, iterator)


def patch_replay(module: ModuleType, into: Patches) -> None:
    """`torchrl.data.replay_buffers.replay_buffers`: every replay buffer, existing and future."""
    regions = {"add": replay_push, "extend": replay_push, "sample": replay_sample}

    def methods(cls: type) -> Iterable[Patch]:
        for name, region in regions.items():
            if defines(cls, name):
                yield patch_below(cls, name, region, "replay")
        if defines(cls, "update_tensordict_priority"):
            yield patch_outermost(cls, "update_tensordict_priority", _profile("update_priority", "replay"))

    into.apply([follow_subclasses(module.ReplayBuffer, lambda cls: map(traceable, methods(cls)), into)])


def _as_modules(base: type, outer: Any, aside: tuple[Any, ...], into: Patches) -> None:
    """Record calls of every subclass of `base` as `outer`, and below it under the name of the class."""
    call = _plain_call()

    def methods(cls: type) -> Iterable[Patch]:
        named = _profile(f"{cls.__name__}.forward", outer.name)
        yield traceable(
            Patch(cls, "__call__", lambda f: named.wrap(call, outer=outer, skip_inside=aside)), call
        )

    into.apply([follow_subclasses(base, methods, into)])


def patch_values(module: ModuleType, into: Patches) -> None:
    """`torchrl.objectives.value.advantages`: GAE and other estimators; inside a loss they are part of it."""
    _as_modules(module.ValueEstimatorBase, advantage, (advantage, loss), into)


def patch_losses(module: ModuleType, into: Patches) -> None:
    """`torchrl.objectives.common`: every loss module, existing and future."""
    _as_modules(module.LossModule, loss, (loss,), into)
