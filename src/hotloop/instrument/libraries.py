"""Which libraries are wrapped in regions, and the object that wraps them as they are imported."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import is_users, suppress_own
from hotloop.instrument import acting_or_learning, process_facts, step_counting
from hotloop.instrument.gap_names import gap_namer
from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.plain_envs import watch_classes
from hotloop.instrument.standard_library import watch_garbage_collector
from hotloop.measure.core_shared import RECORD_GAPS
from hotloop.measure.profiler import default

# module -> our function that patches it, as "module:function"
LIBRARIES = {
    "gymnasium.core": "hotloop.instrument.gymnasium:patch_core",
    "gym.core": "hotloop.instrument.gymnasium:patch_old_core",
    "gymnasium.vector.vector_env": "hotloop.instrument.gymnasium:patch_vector",
    "gymnasium.vector.async_vector_env": "hotloop.instrument.gymnasium:patch_async",
    "torch": "hotloop.instrument.torch:patch_torch",
    "torch.cuda": "hotloop.instrument.torch:patch_cuda",
    "torch._dynamo.eval_frame": "hotloop.instrument.torch:patch_compiler",
    "torch._dynamo.convert_frame": "hotloop.instrument.compilers:patch_dynamo",
    "torch._inductor.compile_fx": "hotloop.instrument.compilers:patch_inductor",
    "numba.core.dispatcher": "hotloop.instrument.compilers:patch_numba",
    "jax": "hotloop.instrument.jax:patch_package",
    "optax": "hotloop.instrument.jax:patch_optax",
    "jax._src.pjit": "hotloop.instrument.compilers:patch_jax",
    "jax._src.compiler": "hotloop.instrument.compilers:patch_jax_compiler",
    "lightning.pytorch.loops.evaluation_loop": "hotloop.instrument.lightning:patch_evaluation_loop",
    "pytorch_lightning.loops.evaluation_loop": "hotloop.instrument.lightning:patch_evaluation_loop",
    "torch.utils.data.dataloader": "hotloop.instrument.torch:patch_data",
    "asyncio": "hotloop.instrument.asyncio:patch_package",
    "cloudpickle.cloudpickle": "hotloop.instrument.standard_library:patch_cloudpickle",
    "multiprocessing.connection": "hotloop.instrument.standard_library:patch_connection",
    "multiprocessing.queues": "hotloop.instrument.standard_library:patch_queues",
    "queue": "hotloop.instrument.standard_library:patch_queue",
    "selectors": "hotloop.instrument.standard_library:patch_selectors",
    "socket": "hotloop.instrument.standard_library:patch_socket",
    "threading": "hotloop.instrument.standard_library:patch_threading",
    "subprocess": "hotloop.instrument.standard_library:patch_subprocess",
    "torch.distributed.distributed_c10d": "hotloop.instrument.torch_distributed:patch_collectives",
    "torch.distributed": "hotloop.instrument.torch_distributed:patch_package",
    "torch.nn.parallel.distributed": "hotloop.instrument.torch_distributed:patch_data_parallel",
    "stable_baselines3.common.vec_env.base_vec_env": "hotloop.instrument.stable_baselines3:patch_vec_env",
    "stable_baselines3.common.vec_env.subproc_vec_env": (
        "hotloop.instrument.stable_baselines3:patch_subprocesses"
    ),
    "stable_baselines3.common.base_class": "hotloop.instrument.stable_baselines3:patch_algorithms",
    "stable_baselines3.common.policies": "hotloop.instrument.stable_baselines3:patch_policies",
    "stable_baselines3.common.buffers": "hotloop.instrument.stable_baselines3:patch_buffers",
    "stable_baselines3.common.callbacks": "hotloop.instrument.stable_baselines3:patch_callbacks",
    "stable_baselines3.common.evaluation": "hotloop.instrument.stable_baselines3:patch_evaluation",
    "stable_baselines3.common.logger": "hotloop.instrument.stable_baselines3:patch_logger",
    "sb3_contrib.common.maskable.evaluation": "hotloop.instrument.stable_baselines3:patch_evaluation",
    "sb3_contrib.ars.ars": "hotloop.instrument.stable_baselines3:patch_random_search",
    "tensordict": "hotloop.instrument.torchrl:patch_tensordict",
    "tensordict.nn": "hotloop.instrument.torchrl:patch_modules",
    "torchrl.envs.common": "hotloop.instrument.torchrl:patch_envs",
    "torchrl.envs.utils": "hotloop.instrument.torchrl:patch_env_utils",
    "torchrl.envs.env_creator": "hotloop.instrument.torchrl:patch_env_creator",
    "torchrl.envs.batched_envs": "hotloop.instrument.torchrl:patch_batched_envs",
    "torchrl.collectors": "hotloop.instrument.torchrl:patch_collectors",
    "torchrl.data.replay_buffers.replay_buffers": "hotloop.instrument.torchrl:patch_replay",
    "torchrl.objectives.value.advantages": "hotloop.instrument.torchrl:patch_values",
    "torchrl.objectives.common": "hotloop.instrument.torchrl:patch_losses",
    "tianshou.env.venvs": "hotloop.instrument.tianshou:patch_vector_envs",
    "tianshou.env.worker.subproc": "hotloop.instrument.tianshou:patch_subprocesses",
    "tianshou.data.collector": "hotloop.instrument.tianshou:patch_collectors",
    "tianshou.data.buffer.buffer_base": "hotloop.instrument.tianshou:patch_buffers",
    "tianshou.algorithm.algorithm_base": "hotloop.instrument.tianshou:patch_algorithms",
    "tianshou.trainer": "hotloop.instrument.tianshou:patch_trainer",
    "pettingzoo.utils.env": "hotloop.instrument.many_agents:patch_pettingzoo",
    "rlcard.envs.env": "hotloop.instrument.many_agents:patch_rlcard",
    "rlcard.utils.utils": "hotloop.instrument.many_agents:patch_tournament",
    "minatar.environment": "hotloop.instrument.gymnasium:patch_minatar",
    "pufferlib.pufferlib": "hotloop.instrument.pufferlib:patch_envs",
    "pufferlib.emulation": "hotloop.instrument.pufferlib:patch_emulation",
    "pufferlib.vector": "hotloop.instrument.pufferlib:patch_vector",
    "pufferlib.pufferl": "hotloop.instrument.pufferlib:patch_trainer",
    "ray._private.worker": "hotloop.instrument.ray:patch_worker",
    "ray._private.serialization": "hotloop.instrument.ray:patch_serialization",
    "ray.cloudpickle.cloudpickle": "hotloop.instrument.ray:patch_pickling",
    "ray._private.inspect_util": "hotloop.instrument.ray:patch_inspection",
    "ray.actor": "hotloop.instrument.ray:patch_actor",
    "ray.remote_function": "hotloop.instrument.ray:patch_remote_function",
    "ray.train.v2.api.train_fn_utils": "hotloop.instrument.ray_train:patch_report",
    "ray.train.v2.api.data_parallel_trainer": "hotloop.instrument.ray_train:patch_trainer",
    "ray.rllib.algorithms.algorithm": "hotloop.instrument.rllib:patch_algorithms",
    "ray.rllib.execution.rollout_ops": "hotloop.instrument.rllib:patch_rollout_ops",
    "ray.rllib.core.learner.learner_group": "hotloop.instrument.rllib:patch_learner_group",
    "ray.rllib.env.env_runner_group": "hotloop.instrument.rllib:patch_env_runner_group",
    "ray.rllib.env.env_runner": "hotloop.instrument.rllib:patch_env_runners",
    "ray.rllib.connectors.connector_pipeline_v2": "hotloop.instrument.rllib:patch_connectors",
    "ray.rllib.utils.replay_buffers.episode_replay_buffer": "hotloop.instrument.rllib:patch_replay_buffers",
    "ray.rllib.core.rl_module.rl_module": "hotloop.instrument.rllib:patch_modules",
    "ray.rllib.core.learner.learner": "hotloop.instrument.rllib:patch_learners",
    "torch.utils.tensorboard.writer": "hotloop.instrument.loggers:patch_tensorboard",
    "tensorboardX.writer": "hotloop.instrument.loggers:patch_tensorboard",
    "wandb.sdk.wandb_run": "hotloop.instrument.loggers:patch_wandb_run",
    "csv": "hotloop.instrument.loggers:patch_csv",
    "json": "hotloop.instrument.loggers:patch_json",
}
# Imports slow enough to deserve a region.
SLOW_IMPORTS = ("numpy", "scipy", "torch", "gymnasium", "stable_baselines3", "sb3_contrib", "torchrl",
                "tensordict", "tianshou", "pufferlib", "ray", "jax", "matplotlib", "pandas", "tensorboard",
                "wandb")  # fmt: skip


class Instrumentation:
    """Everything installed in this process, so that it can be removed again.

    With `only`, the libraries whose names begin with that.
    """

    def __init__(self, only: str = "") -> None:
        self.patches = Patches()
        self._only = only
        self.failures: list[str] = []
        after: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(SLOW_IMPORTS, lambda module: None)
        after |= {name: self._patcher(target) for name, target in LIBRARIES.items()}
        after = {name: patch for name, patch in after.items() if name.startswith(only)}
        self.hook = ImportHook(after, around=_import_region)
        self._undo: list[Callable[[], object]] = []

    def _patcher(self, target: str) -> Callable[[ModuleType], None]:
        def patch(module: ModuleType) -> None:
            ours, _, function = target.partition(":")
            try:
                getattr(importlib.import_module(ours), function)(module, self.patches)
            except Exception as error:  # the library has changed, but the script must still run
                if is_users(error):
                    raise
                self._fail(
                    f"{module.__name__} is not recorded: hotloop does not know this version ({error!r})"
                )

        return patch

    def _fail(self, sentence: str) -> None:
        """Note a failure, also in the capture, so that reports show it."""
        self.failures.append(sentence)
        process_facts.note_problem(sentence)

    def install(self) -> None:
        """Wrap the libraries that are already imported now, and the others as they are imported."""
        default.recorder.name_gap = gap_namer(default.profile)
        default.recorder.flags |= RECORD_GAPS
        default.recorder.locate = True
        self.hook.install()
        self._undo.append(watch_garbage_collector())
        if not self._only:
            self._undo.append(watch_classes(self.patches))

    def remove(self) -> list[Patch]:
        """Remove everything; returns the patches that stay because someone else has patched over them."""
        self.hook.remove()
        for undo in reversed(self._undo):
            with suppress_own(Exception):
                undo()
        self._undo.clear()
        default.recorder.flags &= ~RECORD_GAPS
        default.recorder.locate = False
        step_counting.drop_observations()
        acting_or_learning.reset()
        return self.patches.undo()


def _import_region(name: str) -> Any:
    region = default.profile("import", "other")
    return contextlib.nullcontext() if region.is_open() else region


current: Instrumentation | None = None  # of this process
