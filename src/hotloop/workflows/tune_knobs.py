"""What can be tuned in each reference workload, and how its probes differ from a full training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.tuning.space import Knob, Value, doubling
from hotloop.workflows.probes import COMPARE_S

ENDLESS = 1_000_000_000  # steps of a probe, which is stopped from outside
MANY_EPISODES = 100_000  # the same, where a list of all episodes is made first
STAGES = {"imitate": ("demos", "bc", "rl")}  # workloads whose stages are tuned one at a time
LONG_BUDGET, USUAL_BUDGET = "10m", "2m"
LONG_COMPARE_S = 2.0

# config, changed knobs, all knobs -> config
Change = Callable[[Any, Mapping[str, Value], Mapping[str, Value]], Any]
Knobs = Callable[[Any, int], Sequence[Knob]]  # config, cores


def _nothing_more(config: Any, cores: int) -> list[Knob]:
    return []


def _replaced(config: Any, changed: Mapping[str, Value], settings: Mapping[str, Value]) -> Any:
    return replace(config, **changed)


@dataclass(frozen=True)
class Tunable:
    """How to tune one workload."""

    knobs: Knobs
    endless: Callable[[Any], Any]
    """Config of a probe: it never ends by itself, and soon behaves as in the middle of a training run."""
    also: Knobs = _nothing_more
    """Knobs that are searched only if named with --also."""
    change: Change = _replaced
    allowed: Callable[[Any, Mapping[str, Value]], bool] = lambda config, settings: True
    """Whether the workload accepts this combination."""
    completes_cycle: Callable[[Any], bool] = lambda config: True
    """Whether a run that is asked to stop first learns from what it has collected: then its own env steps and
    seconds are used; other runs are timed between updates."""
    warm_up_updates: int = 1
    """For those other runs: updates until the pace is steady."""
    compare_s: Callable[[Any], float] = lambda config: COMPARE_S
    """Seconds of work of a run of the comparison; more if processes start one after another."""
    budget: str = USUAL_BUDGET


def same_updates_per_env_step(config: Any, n_envs: int) -> dict[str, int]:
    """`train_freq` and `gradient_steps` that keep the updates per env step with `n_envs` environments."""
    rate = Fraction(config.gradient_steps, config.train_freq) * n_envs / config.n_envs
    return {"train_freq": rate.denominator, "gradient_steps": rate.numerator}


# ---- petri


def _petri_knobs(config: Any, cores: int) -> list[Knob]:
    samples = config.samples
    return [
        Knob("learner", ("fused", "torch"), config.learner),
        *([] if config.turbo else [Knob("turbo", (True,), False)]),
        Knob(
            "n_envs",
            tuple(n for n in doubling(1, 1024) if samples % n == 0),
            config.n_envs,
            "envs",
            "semantic",
            f"n_envs * n_steps stays {samples}: more tools, fewer steps on each",
        ),
    ]


def _petri_also(config: Any, cores: int) -> list[Knob]:
    sizes = tuple(n for n in doubling(64, config.samples) if config.samples % n == 0)
    kept = (
        "n_steps and n_epochs stay the same, so the number of updates changes: a different amount of learning"
    )
    return [Knob("batch_size", sizes or (config.batch_size,), config.batch_size, "batch", "semantic", kept)]


def _keep_samples(config: Any, changed: Mapping[str, Value], settings: Mapping[str, Value]) -> Any:
    """Keep the samples of a rollout: with more environments, shorter rollouts."""
    n_steps = config.n_envs * config.n_steps // int(settings.get("n_envs", config.n_envs))
    return replace(config, **{**changed, "n_steps": n_steps})


def _petri_endless(config: Any) -> Any:
    # `auto` times the learners and considers the length of the training run, so keep the user's length
    return config if config.learner == "auto" else replace(config, total_timesteps=ENDLESS, batches=None)


def _ours(config: Any) -> bool:
    """Our trainers complete an iteration before they stop; other libraries are interrupted."""
    return bool(config.trainer == "hotloop")


# ---- ricochet


def _ricochet_knobs(config: Any, cores: int) -> list[Knob]:
    samples = config.n_envs * config.n_steps
    pictures = config.obs_mode == "rgb_image" and config.trainer == "hotloop"
    safe = [
        *([] if config.rendering == "compiled" else [Knob("rendering", ("compiled",), config.rendering)]),
        *([Knob("threads", tuple(range(1, cores + 1)), config.threads, "threads")] if pictures else []),
    ]
    if config.algo != "ppo":  # the boards are the batch of a gradient step
        return safe
    return [
        *safe,
        Knob(
            "n_envs",
            tuple(n for n in doubling(4, 256) if samples % n == 0 and samples // n >= 4) or (config.n_envs,),
            config.n_envs,
            "envs",
            "semantic",
            f"n_envs * n_steps stays {samples}, and so does the number of updates",
        ),
    ]


def _ricochet_endless(config: Any) -> Any:
    auto = config.obs_mode != "rgb_image"  # then `auto` times the learners, see petri
    return config if auto else replace(config, total_timesteps=ENDLESS)


# ---- snake

_SNAKE_VALUES: dict[str, tuple[Value, ...]] = {
    "learner": ("fused", "torch"),
    "loop": ("kernel",),
    "push": ("batch",),
    "transfers": ("batch",),
    "split": ("off",),
    "logging": ("off",),
}


def _snake_knobs(config: Any, cores: int) -> list[Knob]:
    now = config.settings
    found = []
    for name, values in _SNAKE_VALUES.items():
        current = getattr(now, name)
        if config.trainer == "hotloop" and (len(values) > 1 or current != values[0]):
            found.append(Knob(name, values, current))
    if now.flood_fill in ("python", "cached"):
        found.append(Knob("flood_fill", ("compiled",), now.flood_fill))
    kept = "gradient steps per env step and the replay buffer stay the same"
    games = tuple(n for n in doubling(16, 4096) if n <= config.buffer_size)
    return [*found, Knob("n_envs", games or (config.n_envs,), config.n_envs, "envs", "semantic", kept)]


def _snake_also(config: Any, cores: int) -> list[Knob]:
    kept = "gradient steps per env step stay the same, each on more or fewer transitions"
    return [Knob("batch_size", doubling(32, 512), config.batch_size, "batch", "semantic", kept)]


def _snake_change(config: Any, changed: Mapping[str, Value], settings: Mapping[str, Value]) -> Any:
    given = config.train_freq is not None or config.gradient_steps is not None
    if "n_envs" in changed and given:  # they count vector steps, so scale them with the number of games
        rate = config.gradient_steps_per_vector_step * int(changed["n_envs"]) / config.n_envs
        changed = {**changed, "train_freq": rate.denominator, "gradient_steps": rate.numerator}
    return replace(config, **changed)


def _snake_allowed(config: Any, settings: Mapping[str, Value]) -> bool:
    """Only the torch learner can transfer rows one by one."""
    return settings.get("transfers", "batch") == "batch" or settings.get("learner") == "torch"


# ---- mario


def _mario_knobs(config: Any, cores: int) -> list[Knob]:
    kept = "replay_ratio stays the same: transitions learned from per transition collected"
    now = config.settings
    return [
        *([] if now.layout == "fast" else [Knob("layout", ("fast",), now.layout)]),
        Knob("transport", ("rings", "serial"), now.transport),
        Knob("threads", tuple(range(1, cores + 1)), config.threads, "threads"),
        Knob("n_collectors", doubling(1, max(2 * cores, 4)), now.n_collectors, "workers", "semantic", kept),
        Knob("envs_per_collector", doubling(1, 32), now.envs_per_collector, "envs", "semantic", kept),
    ]


def _mario_endless(config: Any) -> Any:
    """As after exploration, with an update for each batch, so that a short probe contains several.

    Collectors are forked, which starts faster and does not change their speed.
    """
    now = config.settings
    return replace(
        config,
        total_timesteps=ENDLESS,
        stop_at_epochs=None,
        exploration_initial_eps=config.exploration_final_eps,
        learning_starts=min(config.learning_starts, now.batch_size),
        accumulate_grad_batches=1,
        target_every_updates=config.target_every_updates * now.accumulate_grad_batches,
        start_method="fork",
    )


def _mario_allowed(config: Any, settings: Mapping[str, Value]) -> bool:
    """The replay buffer must hold at least two steps of all games."""
    games = int(settings["n_collectors"]) * int(settings["envs_per_collector"])
    return bool(config.settings.buffer_size >= 2 * games)


# ---- imitate


def _imitate_knobs(config: Any, cores: int) -> list[Knob]:
    if config.stage == "demos":
        return [Knob("workers", tuple(range(1, cores + 1)), config.demonstration_workers, "workers")]
    if config.stage == "bc":
        workers = config.dataloader_workers
        now = "index" if workers is None else f"loader:{workers}"
        learner = ("fused" if now == "index" else "torch") if config.learner == "auto" else config.learner
        ways = ("index", *(f"loader:{workers}" for workers in range(min(cores, 8) + 1)))
        return [Knob("learner", ("fused", "torch"), learner), Knob("loading", ways, now)]
    if config.stage == "rl":
        kept = "the number of updates per env step stays the same"
        if config.trainer != "hotloop":  # each env is a separate process
            return [Knob("n_envs", doubling(1, max(2 * cores, 4)), config.n_envs, "envs", "semantic", kept)]
        learner = "fused" if config.learner == "auto" else config.learner
        return [
            Knob("learner", ("fused", "torch"), learner),
            Knob("n_envs", doubling(1, 64), config.n_envs, "envs", "semantic", kept),
        ]
    raise HotloopError("imitate is tuned one stage at a time; add --stage demos, --stage bc or --stage rl.")


def _imitate_change(config: Any, changed: Mapping[str, Value], settings: Mapping[str, Value]) -> Any:
    found: dict[str, Any] = dict(changed)
    if config.stage == "bc":
        found["learner"] = settings["learner"]  # `auto` depends on the loading
    if "loading" in found:
        kind, _, workers = str(found["loading"]).partition(":")
        found |= {"loading": kind, "loading_workers": int(workers) if workers else None, "workers": None}
    if "n_envs" in found and config.gradient_steps != -1:
        found |= same_updates_per_env_step(config, int(found["n_envs"]))
    return replace(config, **found)


def _imitate_allowed(config: Any, settings: Mapping[str, Value]) -> bool:
    """The fused learner loads its own batches."""
    return settings.get("loading", "index") == "index" or settings.get("learner") != "fused"


def _imitate_endless(config: Any) -> Any:
    # start from scratch, so that probes do not need a clone
    return replace(
        config, n_episodes=MANY_EPISODES, n_epochs=ENDLESS, total_timesteps=ENDLESS, start="scratch"
    )


TUNABLE = {
    "petri": Tunable(_petri_knobs, _petri_endless, _petri_also, change=_keep_samples, completes_cycle=_ours),
    "ricochet": Tunable(_ricochet_knobs, _ricochet_endless, change=_keep_samples, completes_cycle=_ours),
    "snake": Tunable(
        _snake_knobs,
        lambda config: replace(config, total_timesteps=ENDLESS, stop_at_episodes=None),
        _snake_also,
        change=_snake_change,
        allowed=_snake_allowed,
        completes_cycle=_ours,
    ),
    "imitate": Tunable(
        _imitate_knobs,
        _imitate_endless,
        change=_imitate_change,
        allowed=_imitate_allowed,
        # SAC first collects without learning, and completing the cycle does not make up for that
        completes_cycle=lambda config: config.stage != "rl",
        compare_s=lambda config: LONG_COMPARE_S if config.stage == "demos" else COMPARE_S,
    ),
    "mario": Tunable(
        _mario_knobs,
        _mario_endless,
        allowed=_mario_allowed,
        completes_cycle=lambda config: False,
        warm_up_updates=4,  # until the rings have filled up
        compare_s=lambda config: LONG_COMPARE_S,
        budget=LONG_BUDGET,
    ),
}


def stage_names(workload: str, stage: str | None = None) -> tuple[str, ...]:
    """Targets of tuning a workload: its own name, or one name for each stage (only `stage` if given)."""
    stages = STAGES.get(workload)
    if stages is None:
        return (workload,)
    return tuple(f"{workload} --stage {name}" for name in ((stage,) if stage in stages else stages))
