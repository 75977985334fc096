"""tianshou: collectors, vector envs, buffers, policies, updates and the steps of a trainer.

Env steps are counted where a vector env is stepped, one for each env that took part, and not in its workers;
those of a trainer's test step are an evaluation. Updates are counted where optimizers step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.acting_or_learning import FORWARD, learner_forward, policy_forward
from hotloop.instrument.method_patches import (
    defines,
    patch_below,
    patch_outermost,
    traceable,
    without_counting,
)
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.torch import optimizer_step
from hotloop.instrument.update_counting import begin_training
from hotloop.measure.profiler import default

_profile = default.profile
env_step = _profile("env_step")
env_reset = _profile("env_reset")
env_close = _profile("env_close", "environment")
learn = _profile("learn", "framework")
collect_rollouts = _profile("collect_rollouts", "framework")
train = _profile("train", "framework")
replay_push = _profile("replay_push")
replay_sample = _profile("replay_sample")
advantage = _profile("advantage")
evaluate = _profile("evaluate")
NETWORK_CALLS = (*FORWARD, optimizer_step)


# -- vector envs ---------------------------------------------------------------------------------


def patch_vector_envs(module: ModuleType, into: Patches) -> None:
    """`tianshou.env.venvs`: every vector env and every wrapper of one, existing and future."""
    base = module.BaseVectorEnv

    def methods(cls: type) -> Iterable[Patch]:
        if cls is base:  # almost every class inherits these
            yield patch_outermost(cls, "step", env_step, _count)
            yield patch_outermost(cls, "reset", env_reset)
            yield patch_outermost(cls, "close", env_close)
            return
        if defines(cls, "step"):
            yield patch_below(cls, "step", env_step, "environment", _count)
        if defines(cls, "reset"):
            yield patch_below(cls, "reset", env_reset, "environment")

    into.apply([follow_subclasses(base, methods, into)])


def patch_subprocesses(module: ModuleType, into: Patches) -> None:
    """`tianshou.env.worker.subproc`: workers do not count their steps."""
    into.apply([Patch(module, "_worker", without_counting)])


_observe = step_counting.new_observer(is_vector=True)


class _Running:
    """The current episodes of one vector env, by number of the env inside."""

    def __init__(self, evaluates: bool):
        self.evaluates = evaluates  # until the next reset of all envs
        self.returns: dict[int, float] = {}
        self.lengths: dict[int, int] = {}


_running: dict[int, _Running] = {}  # by id of the vector env


def _count(env: Any, result: Any) -> None:
    """Runs after the outermost step. Only some of the envs may have taken part: `infos` says which."""
    if not step_counting.enabled:
        return
    observations, rewards, terminated, truncated, infos = result
    _observe(env, (observations, 0.0, False))
    if evaluate.is_open():
        return
    running = _running.get(id(env))
    if running is None:
        step_counting.note_env(env, len(env))
        running = _running[id(env)] = _Running(step_counting.is_evaluation(env, sys._getframe(1)))
    if running.evaluates:
        return
    if rewards.ndim > 1:  # of several agents
        rewards = rewards.reshape(len(rewards), -1).mean(1)
    gained = lengths = finished = 0.0
    for reward, ended, info in zip(rewards.tolist(), (terminated | truncated).tolist(), infos, strict=True):
        which = info["env_id"]
        running.returns[which] = running.returns.get(which, 0.0) + reward
        running.lengths[which] = running.lengths.get(which, 0) + 1
        if ended:
            finished += 1
            gained += running.returns.pop(which)
            lengths += running.lengths.pop(which)
    if finished:
        default.progress(
            env_steps=len(rewards),
            episodes=int(finished),
            episode_return=gained / finished,
            episode_length=lengths / finished,
        )
    else:
        default.progress(env_steps=len(rewards))


# -- collectors, buffers, policies, algorithms ---------------------------------------------------


def patch_collectors(module: ModuleType, into: Patches) -> None:
    """`tianshou.data.collector`: every collector, existing and future."""

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "collect"):
            yield Patch(
                cls, "collect", lambda f: collect_rollouts.wrap(f, skip_inside=(collect_rollouts, evaluate))
            )
        if defines(cls, "reset_env"):
            yield Patch(cls, "reset_env", _forgetting)

    into.apply([follow_subclasses(module.BaseCollector, methods, into)])


def _forgetting(reset: Callable[..., Any]) -> Callable[..., Any]:
    """All envs of a collector begin new episodes."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _running.pop(id(getattr(self, "env", None)), None)
        return reset(self, *args, **kwargs)

    return run


def patch_buffers(module: ModuleType, into: Patches) -> None:
    """`tianshou.data.buffer.buffer_base`: every buffer, existing and future."""

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "add"):
            yield patch_below(cls, "add", replay_push, "replay")
        if defines(cls, "sample"):
            yield patch_below(cls, "sample", replay_sample, "replay")

    into.apply([follow_subclasses(module.ReplayBuffer, methods, into)])


def patch_algorithms(module: ModuleType, into: Patches) -> None:
    """`tianshou.algorithm.algorithm_base`: every algorithm and every policy, existing and future."""
    torch_module = sys.modules["torch"].nn.Module
    call = getattr(torch_module, "_wrapped_call_impl", torch_module.__call__)  # torch's own, not ours

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "update"):
            yield patch_outermost(cls, "update", train)
        for name in ("compute_episodic_return", "compute_nstep_return"):
            if name in vars(cls):
                yield patch_outermost(cls, name, advantage)

    def policies(cls: type) -> Iterable[Patch]:
        learning, acting = (_profile(f"{cls.__name__}.forward", kind) for kind in ("model", "policy"))

        def make(f: Callable[..., Any]) -> Any:
            return learning.wrap(
                call,
                outer=learner_forward,
                no_outer_inside=NETWORK_CALLS,
                choose=bool,  # acting, except in an update
                always=(train,),
                otherwise=acting,
                otherwise_outer=policy_forward,
            )

        yield traceable(Patch(cls, "__call__", make), call)

    into.apply([follow_subclasses(module.Algorithm, methods, into)])
    into.apply([follow_subclasses(module.Policy, policies, into)])


def patch_trainer(module: ModuleType, into: Patches) -> None:
    """`tianshou.trainer`: every trainer, existing and future; its test step is an evaluation."""

    def beginning(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin_training()
            return run(*args, **kwargs)

        made: Callable[..., Any] = learn.wrap(call, skip_inside=(learn,))
        return made

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "run"):
            yield Patch(cls, "run", beginning)
        if defines(cls, "_collect_test_episodes"):
            yield patch_outermost(cls, "_collect_test_episodes", evaluate)

    into.apply([follow_subclasses(module.Trainer, methods, into)])
