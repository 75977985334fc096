"""Puts compiled learners underneath Stable-Baselines3, and kernels underneath torch, when they are imported.

The patches are thin: each asks whether its model is boosted and otherwise calls the library's own method.
Kernels are imported, checked and compiled when a model begins to learn.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from hotloop.boost import active
from hotloop.boost.active import Boosted, Record, say
from hotloop.boost.background import Compilation
from hotloop.boost.infos import fast_deepcopy
from hotloop.boost.torch_patches import TorchPatches, forget_all
from hotloop.instrument import process_facts
from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.trial_patches import all_patches

# The library's module -> its class, and our module that stands in for it.
ALGORITHMS = {
    "stable_baselines3.ppo.ppo": ("PPO", "hotloop.boost.ppo"),
    "stable_baselines3.a2c.a2c": ("A2C", "hotloop.boost.a2c"),
    "stable_baselines3.dqn.dqn": ("DQN", "hotloop.boost.dqn"),
    "stable_baselines3.sac.sac": ("SAC", "hotloop.boost.sac"),
    "stable_baselines3.td3.td3": ("TD3", "hotloop.boost.td3"),
    "stable_baselines3.ddpg.ddpg": ("DDPG", "hotloop.boost.td3"),
    "sb3_contrib.ppo_mask.ppo_mask": ("MaskablePPO", "hotloop.boost.maskable_ppo"),
}

is_background = False  # compile kernels in a separate process, and train unboosted meanwhile
kept_names: list[str] = []  # patches of `hotloop try` still to apply
_compiled: set[str] = set()  # our modules whose kernels are ready
_compilations: dict[str, Compilation] = {}  # our modules -> their compilations in the background


class Installation:
    """Everything put into this process, so that it can be removed again."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.torch: TorchPatches | None = None
        after: dict[str, Callable[[ModuleType], None]] = {
            "stable_baselines3.common.base_class": lambda module: self._patch(
                module.BaseAlgorithm, "_setup_learn", _prepare_first
            ),
            "stable_baselines3.common.on_policy_algorithm": lambda module: self._patch(
                module.OnPolicyAlgorithm, "collect_rollouts", _collecting
            ),
        }
        after["stable_baselines3.common.policies"] = lambda module: self._patch(
            module.ActorCriticPolicy, "predict", _predicting
        )
        after["sb3_contrib.common.maskable.policies"] = lambda module: self._patch(
            module.MaskableActorCriticPolicy, "predict", _predicting_with_masks
        )
        after["stable_baselines3.common.vec_env.dummy_vec_env"] = lambda module: self._patch(
            module, "deepcopy", fast_deepcopy
        )
        after["torch"] = self._patch_torch
        for name, (cls, _) in ALGORITHMS.items():
            after[name] = functools.partial(self._patch_algorithm, cls)
        self.hook = ImportHook(after)

    def _patch(self, owner: Any, name: str, make: Callable[..., Callable[..., Any]]) -> None:
        self.patches.apply([Patch(owner, name, make)])

    def _patch_algorithm(self, name_of_class: str, module: ModuleType) -> None:
        cls = getattr(module, name_of_class)
        for name, make in (("train", _training), ("collect_rollouts", _collecting)):
            if name in vars(cls):
                self._patch(cls, name, make)

    def _patch_torch(self, module: ModuleType) -> None:
        try:
            self.torch = TorchPatches(module, self.add, _apply_kept)
        except Exception as error:  # a torch that is built in another way: the script must run all the same
            say(f"plain torch runs unboosted: {error!r}")

    def add(self, patches: Iterable[Patch]) -> None:
        """Patches that an algorithm needs besides, once it is used."""
        self.patches.apply(patches)

    def remove(self) -> None:
        """Put the library back as it was; models go on unboosted."""
        self.hook.remove()
        self.patches.undo()
        _compiled.clear()
        for compilation in _compilations.values():
            compilation.stop()
        _compilations.clear()
        forget_all()
        active.has_models = False


current: Installation | None = None


def install() -> Installation:
    """Boost Stable-Baselines3 in this process, whether it is imported already or not."""
    global current
    if current is None:
        process_facts.is_boosted = True
        current = Installation()
        current.hook.install()
    return current


def keep(names: Sequence[str]) -> None:
    """Apply these patches of `hotloop try` when a model begins to learn, or a loop of plain torch."""
    kept_names.extend(names)


def say_what_was_not_kept() -> None:
    """At the end of a script: patches that were asked for, but never applied."""
    if kept_names:
        say(
            f"{', '.join(kept_names)} not applied: no Stable-Baselines3 model began to learn, and no "
            "nn.Sequential or Adam of torch was used more than a few times"
        )


def _apply_kept() -> None:
    if kept_names:
        wanted = list(kept_names)
        kept_names.clear()
        for patch in all_patches():
            if patch.name in wanted:
                reason = patch.skip_reason()
                if reason is None:
                    patch.apply()
                say(f"{patch.name}: {'applied' if reason is None else f'left out: {reason}'}")


def compile_in_background(wanted: bool) -> None:
    """Whether models train unboosted until their kernels are compiled, instead of waiting for them."""
    global is_background
    is_background = wanted


def remove() -> None:
    """Undo `install`."""
    global current
    if current is not None:
        current.remove()
        current = None


# ---- patches


def _prepare_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around `BaseAlgorithm._setup_learn`, which every `learn` calls before it starts its clock."""

    def setup_learn(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not active.is_paused:
            prepare(model)
        _apply_kept()
        return original(model, *args, **kwargs)

    return setup_learn


def _training(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around an algorithm's `train`."""
    from hotloop.boost.audit import AuditError, NotFinite

    def train(model: Any, *args: Any, **kwargs: Any) -> Any:
        boosted = None if active.is_paused else _ready(model)
        if boosted is None or boosted.learner is None:
            return original(model, *args, **kwargs)
        try:
            boosted.learner.train(model, original, *args, **kwargs)
        except AuditError as failure:
            boosted.switch_off(f"an audit failed: {failure}. The library's result was kept.")
            return original(model, *args, **kwargs)
        except NotFinite:
            return original(model, *args, **kwargs)

    return train


def _collecting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around `collect_rollouts`."""

    def collect_rollouts(model: Any, *args: Any, **kwargs: Any) -> Any:
        boosted = None if active.is_paused else _ready(model)
        learner: Any = None if boosted is None else boosted.learner
        collect = getattr(learner, "collect_rollouts", None)
        if boosted is None or collect is None:
            return original(model, *args, **kwargs)
        found = collect(model, original, *args, **kwargs)
        if learner.wrong_acting is not None:
            boosted.switch_off(f"an audit failed: {learner.wrong_acting}")
        return found

    return collect_rollouts


def _predicting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around the `predict` of actor-critic policies, which evaluations call."""

    def predict(
        policy: Any,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> Any:
        learner = active.of_policy(policy)
        found = None if learner is None else learner.predict(policy, original, observation, deterministic)
        if found is None:
            return original(policy, observation, state, episode_start, deterministic)
        return found, state

    return predict


def _predicting_with_masks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around the `predict` of MaskablePPO's policies."""

    def predict(
        policy: Any,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Any:
        learner, found = active.of_policy(policy), None
        if learner is not None:
            found = learner.predict(policy, original, observation, deterministic, action_masks)
        if found is None:
            return original(policy, observation, state, episode_start, deterministic, action_masks)
        return found, state

    return predict


# ---- which models


def _ready(model: Any) -> Boosted:
    """The decision on a model, made again when something it depends on has changed."""
    boosted = active.boosted(model)
    if boosted is None or (boosted.learner is not None and _has_changed(boosted, model)):
        return prepare(model)
    if boosted.compilation is not None and not boosted.compilation.is_running():
        return prepare(model)
    return boosted


def _has_changed(boosted: Boosted, model: Any) -> bool:
    """Whether the library's functions, or what the learner knows of the model, are others than before."""
    from hotloop.boost.known_sources import Functions

    if boosted.functions is None:
        cls = type(model)
        target = ALGORITHMS[cls.__module__][1]
        steps = [f"torch.optim.{name}.step" for name in ("Adam", "RMSprop")]
        boosted.functions = Functions([*importlib.import_module(target).SOURCES, *steps])
    elif boosted.functions.changed():
        boosted.functions = None
        return True
    return bool(boosted.learner.changed(model))


def prepare(model: Any) -> Boosted:
    """Decide whether a model is boosted, compile what it needs, and say so when that is news."""
    boosted, is_news = active.boosted(model), False
    if boosted is None:
        boosted, is_news = Boosted(Record(type(model).__name__)), True
    record = boosted.record
    if record.audits.failed or record.acting_audits.failed:
        return boosted
    was = record.reason
    ours, record.reason = why_not(model)
    if ours is None or record.reason is not None:
        boosted.learner = None
        if is_news or was != record.reason:
            say(f"{record.name} runs unboosted: {record.reason}")
    elif boosted.learner is None or boosted.learner.changed(model):
        learner = _make_learner(ours, model, record)
        waited, boosted.compilation = boosted.compilation, _compile(ours, learner, model)
        if boosted.compilation is not None:
            boosted.learner, record.reason = None, "its kernels are being compiled in the background"
            if is_news or was != record.reason:
                say(f"{record.name} starts unboosted: {record.reason}")
        else:
            boosted.learner = learner
            if waited is not None:
                record.switched_at_env_step = int(model.num_timesteps)
                record.switched_at_n_updates = int(model._n_updates)
                say(
                    f"{record.name} switches to compiled kernels at env step {model.num_timesteps:,}, "
                    f"n_updates {model._n_updates:,} ({record.description})"
                )
            elif is_news or was is not None:
                say(f"{record.name} runs on compiled kernels ({record.description})")
    record.audits.soon()
    active.remember(model, boosted)
    return boosted


def _make_learner(ours: ModuleType, model: Any, record: Record) -> Any:
    """A learner for the model, whose kernels may not be compiled yet."""
    learner = ours.Learner(model)
    learner.audits, learner.acting_audits = record.audits, record.acting_audits
    learner.record = record
    record.description = learner.describe()
    return learner


def _compile(ours: ModuleType, learner: Any, model: Any) -> Compilation | None:
    """Load or compile the kernels of a learner; a compilation in the background that is not over, or None."""
    name = ours.__name__
    if name in _compiled:
        return None
    begun = _compilations.get(name)
    if is_background and begun is None:
        from hotloop.rl.envs.compiled import NotCompiledError, only_from_cache

        try:
            with only_from_cache():
                learner.compile(model)
        except NotCompiledError:
            begun = _compilations[name] = Compilation(name, model)
    if begun is not None:
        if begun.is_running():
            return begun
        failure = begun.failure()
        if failure is not None:
            say(f"compiling in the background failed ({failure}); compiling now")
    _compiled.add(name)
    learner.compile(model)
    if current is not None:
        current.add(getattr(ours, "acting_patches", list)())
    return None


def why_not(model: Any) -> tuple[ModuleType | None, str | None]:
    """Our module for a model, and the reason why it cannot stand in, or None."""
    cls = type(model)
    known = {f"{module}.{name}": ours for module, (name, ours) in ALGORITHMS.items()}
    target = known.get(f"{cls.__module__}.{cls.__qualname__}")
    if target is None:
        for base in cls.__mro__[1:]:
            if f"{base.__module__}.{base.__qualname__}" in known:
                return None, f"it is a subclass of {base.__name__}, and its methods may differ"
        return None, f"{cls.__name__} is not one of {', '.join(name for name, _ in ALGORITHMS.values())}"
    try:
        if importlib.util.find_spec(target) is None:
            return None, f"{cls.__name__} is not compiled yet"
        ours = importlib.import_module(target)
    except ImportError as missing:
        return None, f"{missing.name or missing} is missing: pip install 'hotloop[rl]'"
    from hotloop.boost.known_sources import unknown

    return ours, unknown(ours.SOURCES) or ours.why_not(model)
