"""RLlib (new API stack): env runners, connectors, modules, learners, and the steps of an algorithm.

Env steps are counted where Gymnasium's vector envs are stepped, updates where optimizers step; both happen in
the workers of Ray, which record themselves (`ray_hook.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument.acting_or_learning import FORWARD, learner_forward, policy_forward
from hotloop.instrument.method_patches import defines, patch_outermost, traceable
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.measure.profiler import default

_profile = default.profile
training_step = _profile("training_step", "framework")
collect_rollouts = _profile("collect_rollouts", "framework")
sample_env_runners = _profile("sample_env_runners", "framework")
connector = _profile("connector", "framework")
learner_update = _profile("learner_update", "framework")
update_learners = _profile("update_learners", "framework")
weights_sync = _profile("weights_sync")
replay_push = _profile("replay_push")
replay_sample = _profile("replay_sample")
loss = _profile("loss")
evaluate = _profile("evaluate")


def _record_methods(base: type, regions: dict[str, Any], into: Patches) -> None:
    """Record these methods, outermost calls only, of a class and all that derive from it."""

    def methods(cls: type) -> Iterable[Patch]:
        for name, region in regions.items():
            if defines(cls, name):
                yield patch_outermost(cls, name, region)

    into.apply([follow_subclasses(base, methods, into)])


def patch_algorithms(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.algorithms.algorithm`: in the driver."""
    _record_methods(module.Algorithm, {"training_step": training_step, "evaluate": evaluate}, into)


def patch_rollout_ops(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.execution.rollout_ops`: in the driver, waiting for samples of all env runners."""
    into.apply([patch_outermost(module, "synchronous_parallel_sample", sample_env_runners)])


def patch_learner_group(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.core.learner.learner_group`: in the driver, waiting for the learners."""
    _record_methods(module.LearnerGroup, {"update": update_learners}, into)


def patch_env_runner_group(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.env.env_runner_group`: in the driver, sending weights."""
    names = ("sync_weights", "sync_env_runner_states")
    _record_methods(module.EnvRunnerGroup, dict.fromkeys(names, weights_sync), into)


def patch_env_runners(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.env.env_runner`: `sample` of every env runner; those for evaluation do not train."""

    def sampling(sample: Callable[..., Any]) -> Callable[..., Any]:
        training = collect_rollouts.wrap(sample, skip_inside=(collect_rollouts,))
        evaluating = evaluate.wrap(sample, skip_inside=(evaluate,))

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            evaluates = getattr(getattr(self, "config", None), "in_evaluation", False)
            return (evaluating if evaluates else training)(self, *args, **kwargs)

        return call

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "sample"):
            yield Patch(cls, "sample", sampling)
        if defines(cls, "set_state"):
            yield patch_outermost(cls, "set_state", weights_sync)

    into.apply([follow_subclasses(module.EnvRunner, methods, into)])


def patch_connectors(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.connectors.connector_pipeline_v2`: each kind of pipeline is a region below `connector`."""
    wrapped: dict[tuple[type, Callable[..., Any]], Callable[..., Any]] = {}

    def piping(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = wrapped.get((type(self), call))
            if found is None:
                region = _profile(type(self).__name__, "framework")
                found = wrapped[type(self), call] = region.wrap(call, outer=connector)
            return found(self, *args, **kwargs)

        return run

    def methods(cls: type) -> Iterable[Patch]:
        if cls is module.ConnectorPipelineV2:
            yield Patch(cls, "__call__", piping)

    into.apply([follow_subclasses(module.ConnectorPipelineV2, methods, into)])


def patch_replay_buffers(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.utils.replay_buffers.episode_replay_buffer`: buffers of episodes."""
    _record_methods(module.EpisodeReplayBuffer, {"add": replay_push, "sample": replay_sample}, into)


def patch_modules(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.core.rl_module.rl_module`: acting and learning."""
    regions = {
        "forward_exploration": policy_forward,
        "forward_inference": policy_forward,
        "forward_train": learner_forward,
    }

    def recorded(region: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda forward: region.wrap(forward, skip_inside=FORWARD)

    def methods(cls: type) -> Iterable[Patch]:
        for name, region in regions.items():
            if defines(cls, name):
                yield traceable(Patch(cls, name, recorded(region)))

    into.apply([follow_subclasses(module.RLModule, methods, into)])


def patch_learners(module: ModuleType, into: Patches) -> None:
    """`ray.rllib.core.learner.learner`: updates of a learner."""
    _record_methods(module.Learner, {"update": learner_update, "compute_losses": loss}, into)
