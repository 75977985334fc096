"""PufferLib 3: vector envs, their workers, and the trainer `PuffeRL`.

Its trainer has no methods for acting, filling the buffer or computing the loss, but it calls `Profile` where
each of them begins, so that is where their regions begin, too. `PuffeRL.evaluate` collects experience.
Env steps are counted where actions are sent, by the process that sends them.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType, ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import step_counting
from hotloop.instrument.acting_or_learning import learner_forward, policy_forward
from hotloop.instrument.method_patches import defines, patch_below, patch_outermost
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.standard_library import ipc_wait
from hotloop.instrument.torch import checkpoint
from hotloop.instrument.update_counting import begin_training
from hotloop.measure.profiler import default

KNOWN = "3."  # versions begin with that
TRAINER = "pufferlib.pufferl"

_profile = default.profile
spin_wait = _profile("spin_wait")
env_setup = _profile("env_setup", "environment")
env_step = _profile("env_step")
env_reset = _profile("env_reset")
env_close = _profile("env_close", "environment")
learn = _profile("learn", "framework")
collect_rollouts = _profile("collect_rollouts", "framework")
train = _profile("train", "framework")
replay_push = _profile("replay_push")
replay_sample = _profile("replay_sample")
advantage = _profile("advantage")
loss = _profile("loss")
log = _profile("log")
evaluate = _profile("evaluate")


_refused: set[str] = set()  # versions that were reported


def _is_known() -> bool:
    """Whether this is a version of PufferLib that we know; raises, once, if it is not."""
    version = str(getattr(sys.modules.get("pufferlib"), "__version__", "unknown"))
    if not version.startswith(KNOWN) and version not in _refused:
        _refused.add(version)
        raise LookupError(f"PufferLib {version}, known are {KNOWN}x")
    return version.startswith(KNOWN)


# -- counting --------------------------------------------------------------------------------------


class _Watched:
    """What is known about one env that is stepped by this process."""

    def __init__(self, env: Any, is_native: bool):
        self.is_native = is_native  # resets envs within a step, and logs episodes in its infos
        self.logs = False  # has logged episodes
        self.episodes = 0  # counted by their ends
        self.steps_due = 0  # that the next actions make
        self.evaluates: bool | None = None  # not known before the first step
        self.batches: dict[int, Any] = {}  # first agent of a batch -> what its episodes are counted under
        self.env = weakref.ref(env)

    @property
    def resets_cost_a_step(self) -> bool:
        """Of a row whose episode has ended."""
        return not self.is_native


class _Batch:
    """The rows of one batch of a vector env."""

    def __init__(self, watched: _Watched):
        self.resets_cost_a_step = watched.resets_cost_a_step


_watched: dict[int, _Watched] = {}  # by id of the env
_counted: _Watched | None = None  # whose episodes `_ends` counts now


def _of(env: Any) -> _Watched:
    found = _watched.get(id(env))
    if found is None or found.env() is not env:
        native = getattr(sys.modules.get("pufferlib"), "PufferEnv", ())
        is_native = isinstance(getattr(env, "driver_env", env), native)
        found = _watched[id(env)] = _Watched(env, is_native)
    return found


def _report(episodes: int = 0, env_steps: int = 0, **means: float) -> None:
    """Episodes that ended according to the flags; steps are counted elsewhere."""
    if episodes and _counted is not None:
        _counted.episodes += episodes
        default.progress(episodes=episodes, **means)


_observe = step_counting.new_observer(is_vector=True)
_ends = default.step_counter(1, (2, 3), resets_cost_a_step=lambda rows: rows.resets_cost_a_step)
_ends.report = _report


def _trains(watched: _Watched, env: Any, rows: int, frame: FrameType) -> bool:
    """Whether the steps of an env count; what it is for is asked at the first step after a reset."""
    if evaluate.is_open():
        return False
    if watched.evaluates is None:
        step_counting.note_env(env, rows)
        in_trainer = collect_rollouts.is_open()  # whose method is called `evaluate`
        watched.evaluates = not in_trainer and step_counting.is_evaluation(env, frame)
    return not watched.evaluates


def _count(watched: _Watched, batch: Any, steps: int, result: Sequence[Any]) -> None:
    """Count env steps, and the episodes of a result: observations, rewards, terminals, truncations, infos.

    Envs in C set no flag for truncated episodes, some of them none at all, but log what ended since the last
    time as means of `n` episodes. Once an env has done so, its flags are not looked at.
    """
    global _counted
    if watched.is_native:
        for info in result[4]:
            if info and "n" in info and ("episode_length" in info or "episode_return" in info):
                _log(watched, info)
    if not watched.logs:
        _counted = watched
        _ends(batch, tuple(result[:4]))
    if steps:
        default.progress(env_steps=steps)


def _log(watched: _Watched, info: dict[str, Any]) -> None:
    """Episodes in a log; those whose flags were seen before the first one are in it again."""
    episodes = round(info["n"]) - (0 if watched.logs else watched.episodes)
    watched.logs = True
    if episodes > 0:
        means = {key: info[key] for key in ("episode_return", "episode_length") if key in info}
        default.progress(episodes=episodes, **means)


def _stepped(env: Any, result: Any) -> None:
    """After the outermost step of an env in C or of one that steps all its agents itself."""
    if not step_counting.enabled:
        return
    watched = _of(env)
    rows = len(result[1])
    if not collect_rollouts.is_open():  # there, the trainer itself says when it acts
        _observe(env, (result[0], 0.0, False))
    if _trains(watched, env, rows, sys._getframe(1)):
        _count(watched, watched, rows, result)


def _begun_anew(env: Any, result: Any = None) -> None:
    """After a reset of all envs: the next results are observations only."""
    watched = _of(env)
    watched.evaluates = None
    watched.steps_due = 0
    watched.batches.clear()
    _ends.forget(watched)


def _received(env: Any, result: Any) -> None:
    """After a vector env has passed on what some or all of its workers have done."""
    if not step_counting.enabled:
        return
    observations, rewards, terminals, truncations, _, agents, masks = result
    watched = _of(env)
    first = int(agents[0])
    rows = watched.batches.get(first)
    if watched.is_native:
        watched.steps_due = len(rewards)
    else:  # envs that are done will only be reset, and absent agents do nothing
        watched.steps_due = int((masks & ~(terminals | truncations)).sum())
    if rows is None:
        rows = watched.batches[first] = _Batch(watched)
        _observe.forget(rows, (observations,))
        return
    if not collect_rollouts.is_open():
        _observe(rows, (observations, 0.0, False))
    if not evaluate.is_open() and watched.evaluates is False:
        _count(watched, rows, 0, result)


def _sent(env: Any, frame: FrameType) -> None:
    """After actions were sent to the envs that were received last.

    A worker of `pufferlib.vector.Ray`, called by Ray itself, does not count its steps.
    """
    if step_counting.enabled and not str(frame.f_globals.get("__name__")).startswith("ray."):
        watched = _of(env)
        rows = int(getattr(env, "agents_per_batch", 0)) or 1
        if _trains(watched, env, rows, frame) and watched.steps_due:
            default.progress(env_steps=watched.steps_due)
        watched.steps_due = 0


# -- envs ------------------------------------------------------------------------------------------


def patch_envs(module: ModuleType, into: Patches) -> None:
    """`pufferlib.pufferlib`: every `PufferEnv`, existing and future."""
    if not _is_known():
        return

    def methods(cls: type) -> Iterable[Patch]:
        if cls is module.PufferEnv:  # its methods only raise, or call those of the class
            return
        if defines(cls, "step"):
            yield patch_below(cls, "step", env_step, "environment", _stepped)
        if defines(cls, "reset"):
            yield patch_below(cls, "reset", env_reset, "environment", _begun_anew)

    into.apply([follow_subclasses(module.PufferEnv, methods, into)])


def patch_emulation(module: ModuleType, into: Patches) -> None:
    """`pufferlib.emulation`: envs of PettingZoo; those of Gymnasium are recorded as such."""
    if _is_known():
        cls = module.PettingZooPufferEnv
        into.apply(patch_below(cls, name, outer, "environment") for name, outer in _STEP_AND_RESET.items())


_STEP_AND_RESET = {"step": env_step, "reset": env_reset}


def patch_vector(module: ModuleType, into: Patches) -> None:
    """`pufferlib.vector`: vector envs in this process, in workers and on Ray; and what workers run."""
    if not _is_known():
        return
    processes = module.Multiprocessing

    def methods(cls: type) -> Iterable[Patch]:
        for name, outer in _STEP_AND_RESET.items():
            if defines(cls, name):
                yield patch_below(cls, name, outer, "environment")
        if defines(cls, "async_reset"):
            yield patch_outermost(cls, "async_reset", env_reset)
            yield Patch(cls, "async_reset", _beginning_anew)
        if defines(cls, "send"):
            yield Patch(cls, "send", lambda f: _sending(cls, f))
        if defines(cls, "recv"):
            waits = issubclass(cls, processes)
            yield Patch(cls, "recv", lambda f: _receiving(spin_wait.wrap(f, outer=ipc_wait) if waits else f))
        if defines(cls, "close"):
            yield patch_outermost(cls, "close", env_close)

    classes = [module.Serial, module.Multiprocessing, module.Ray]
    into.apply(follow_subclasses(cls, methods, into) for cls in classes)
    into.apply(
        [
            Patch(module, "_worker_process", lambda f: _working(module, f)),
            Patch(module, "make", lambda f: env_setup.wrap(_making(f, into), skip_inside=(env_setup,))),
        ]
    )


def _beginning_anew(reset: Callable[..., Any]) -> Callable[..., Any]:
    def async_reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress_own(Exception):
            _begun_anew(self)
        return reset(self, *args, **kwargs)

    return async_reset


def _sending(cls: type, send: Callable[..., Any]) -> Callable[..., Any]:
    recorded = _profile(f"{cls.__name__}.send", "environment").wrap(send, outer=env_step)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = recorded(self, *args, **kwargs)
        with suppress_own(Exception):
            _sent(self, sys._getframe(1))
        return result

    return call


def _receiving(recv: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = recv(self, *args, **kwargs)
        with suppress_own(Exception):
            _received(self, result)
        return result

    return call


def _making(make: Callable[..., Any], into: Patches) -> Callable[..., Any]:
    """`python -m pufferlib.pufferl` is not imported under its name, but makes envs before its trainer."""

    def call(*args: Any, **kwargs: Any) -> Any:
        main = sys.modules.get("__main__")
        with suppress_own(Exception):
            if getattr(getattr(main, "__spec__", None), "name", "") == TRAINER and main not in _trainers:
                assert main is not None
                patch_trainer(main, into)
        return make(*args, **kwargs)

    return call


# -- workers ---------------------------------------------------------------------------------------


def _working(module: ModuleType, worker: Callable[..., Any]) -> Callable[..., Any]:
    """A worker counts nothing, and waits in a loop of its own until it is to step or reset its envs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        step_counting.stop_counting()
        with suppress_own(Exception):
            args, kwargs = _with_waits(module, worker, args, kwargs)
        return worker(*args, **kwargs)

    return run


def _with_waits(
    module: ModuleType, worker: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = inspect.signature(worker).bind(*args, **kwargs)
    words = given.arguments
    waiting = _Waiting()
    words["send_pipe"] = _Pipe(words["send_pipe"], waiting)
    if words["is_native"] and words["num_envs"] == 1:
        (create,) = words["env_creators"]

        def creating(*args: Any, **kwargs: Any) -> Any:
            made = create(*args, **kwargs)
            with suppress_own(Exception):
                waiting.between_calls_of(type(made))
            return made

        words["env_creators"] = [creating]
    else:
        waiting.between_calls_of(module.Serial)
    return given.args, given.kwargs


class _Waiting:
    """`ipc_wait` and `spin_wait` in a worker: open except where the envs or the pipe are used."""

    def __init__(self) -> None:
        self._is_open = False

    def between_calls_of(self, cls: type) -> None:
        """Wait except in `step` and `reset` of that class; in this process only, until it ends."""
        Patches().apply([Patch(cls, "step", self.around), Patch(cls, "reset", self.around)])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_open:
                spin_wait.__exit__()
                ipc_wait.__exit__()
            self._is_open = False
            result = function(*args, **kwargs)
            ipc_wait.__enter__()
            spin_wait.__enter__()
            self._is_open = True
            return result

        return call


class _Pipe:
    """The pipe that a worker sends its infos through."""

    def __init__(self, pipe: Any, waiting: _Waiting):
        self._pipe = pipe
        self.send = waiting.around(pipe.send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


# -- the trainer -----------------------------------------------------------------------------------

# What the trainer does from the call of its profile with that name on, and after which other name.
_SECTIONS: dict[tuple[str | None, str], Any] = {
    ("eval_copy", "eval_forward"): policy_forward,
    ("eval_forward", "eval_copy"): replay_push,
    ("train_misc", "train_copy"): replay_sample,
    ("train_copy", "train_forward"): learner_forward,
    ("train_forward", "train_misc"): loss,
}
_section: dict[int, tuple[str, Any]] = {}  # id of a profile -> the section it is in, and its region
_trainers: set[ModuleType] = set()  # modules whose trainer is patched
_unused: weakref.WeakSet[Any] = weakref.WeakSet()  # trainers that have collected since they last trained


def patch_trainer(module: ModuleType, into: Patches) -> None:
    """`pufferlib.pufferl`: the trainer, its profile, and training and evaluation as functions."""
    if not _is_known():
        return
    trainer, profile = module.PuffeRL, module.Profile
    regions = {"mean_and_log": log, "print_dashboard": log, "save_checkpoint": checkpoint}

    def methods(cls: type) -> Iterable[Patch]:
        if cls is trainer:
            yield Patch(cls, "__init__", _beginning)
        if defines(cls, "evaluate"):
            yield Patch(cls, "evaluate", _collecting)
        if defines(cls, "train"):
            yield Patch(cls, "train", _training)
        for name, region in regions.items():
            if defines(cls, name):
                yield patch_outermost(cls, name, region)

    _trainers.add(module)
    into.apply([follow_subclasses(trainer, methods, into)])
    into.apply(
        [
            Patch(profile, "__call__", _switching),
            Patch(profile, "end", _ending),
            patch_outermost(module, "compute_puff_advantage", advantage),
            patch_outermost(module, "train", learn),
            patch_outermost(module, "eval", evaluate),
        ]
    )


def _beginning(init: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin_training()
        init(self, *args, **kwargs)

    return __init__


def _collecting(collect: Callable[..., Any]) -> Callable[..., Any]:
    """`PuffeRL.evaluate` collects experience, unless nothing is learnt from it."""
    training, evaluating = collect_rollouts.wrap(collect), evaluate.wrap(collect)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if collect_rollouts.is_open() or evaluate.is_open():  # a derived class calls this one
            return collect(self, *args, **kwargs)
        evaluates = False
        with suppress_own(Exception):
            evaluates = _evaluates(self, sys._getframe(1))
            _unused.add(self)
        try:
            return (evaluating if evaluates else training)(self, *args, **kwargs)
        finally:
            _leave_section(getattr(self, "profile", None))

    return call


def _evaluates(trainer: Any, frame: FrameType) -> bool:
    """Whether a rollout is an evaluation.

    After the last update, `pufferl.train` collects 32 rollouts more to see how good the policy is. In a loop
    of the user's, that can be seen from the second of them on.
    """
    if trainer.epoch:
        is_over = trainer.global_step >= trainer.config["total_timesteps"]
        of_pufferlib = any(frame.f_globals is vars(module) for module in _trainers)
        if trainer in _unused or (is_over and of_pufferlib and frame.f_code.co_name == "train"):
            return True
    return step_counting.is_evaluation(trainer.vecenv, frame)


def _training(method: Callable[..., Any]) -> Callable[..., Any]:
    recorded = train.wrap(method, skip_inside=(train,))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _unused.discard(self)
        try:
            return recorded(self, *args, **kwargs)
        finally:
            _leave_section(getattr(self, "profile", None))

    return call


def _switching(call: Callable[..., Any]) -> Callable[..., Any]:
    """A section of the trainer ends and another begins."""

    def begin(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        before, region = _section.get(id(self), (None, None))
        if region is not None:
            region.__exit__()
        region = _SECTIONS.get((before, name))
        _section[id(self)] = name, region
        if region is not None:
            region.__enter__()
        return call(self, name, *args, **kwargs)

    return begin


def _ending(end: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _leave_section(self)
        return end(self, *args, **kwargs)

    return call


def _leave_section(profile: Any) -> None:
    _, region = _section.pop(id(profile), (None, None))
    if region is not None:
        region.__exit__()
