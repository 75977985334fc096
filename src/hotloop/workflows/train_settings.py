"""Settings that `hotloop train` takes from a preset or from `hotloop tune` instead of the defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.units import size
from hotloop.machine.facts import cores_granted
from hotloop.machine.health import accelerators, memory_available_bytes
from hotloop.tuning.cache import Tuned, never_tuned, recall
from hotloop.tuning.starting_rules import PRESETS, Preset, starting_settings
from hotloop.workflows.tune_knobs import stage_names
from hotloop.workflows.tune_workload import NOT_TUNED

# workload -> its setting -> field of Preset. A workload may lack a setting for some fields.
# `n_epochs` of a preset are passes over demonstrations; the epochs of other workloads are something else.
PRESET_FIELDS: dict[str, dict[str, str]] = {
    "ricochet": {"n_envs": "n_envs", "total_timesteps": "total_timesteps"},
    "petri": {"n_envs": "n_envs", "total_timesteps": "total_timesteps", "batch_size": "batch_size"},
    "snake": {"n_envs": "n_envs", "stop_at_episodes": "n_episodes", "batch_size": "batch_size"},
    "mario": {"n_collectors": "n_envs", "batch_size": "batch_size"},
    "imitate": {
        "workers": "demonstration_workers",
        "loading_workers": "loading_workers",
        "n_envs": "n_envs",
        "batch_size": "batch_size",
        "n_episodes": "n_episodes",
        "n_epochs": "n_epochs",
        "total_timesteps": "total_timesteps",
    },
}
# workload -> preset -> its own settings, instead of those above.
OWN_PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ricochet": {
        "pictures": {
            "algo": "dagger",
            "encoder": "scan",
            "robots": 2,
            "max_solution_moves": 3,
            "max_episode_steps": 6,
            "n_envs": 64,
            "channels": 48,
            "learning_rate": 2e-3,
            "total_timesteps": 96_000,
            "eval_every_steps": 4_800,
            "n_eval_episodes": 1_000,
        },
    },
    "mario": {
        "quick": {
            "size": 44,
            "channels": (16, 32, 32),
            "features_dim": 128,
            "batch_norm_momentum": 0.02,
            "batch_size": 64,
            "accumulate_grad_batches": 1,
            "replay_ratio": 4.0,
            "learning_rate": 5e-4,
            "final_learning_rate": 1e-5,
            "gamma": 0.9,
            "n_steps": 3,
            "target_every_updates": 1,
            "tau": 0.01,
            "target_statistics": "batch",
            "learning_starts": 1_000,
            "exploration_steps": 20_000,
            "show_jump_button": True,
            "precision": "float32",  # bfloat16 gains nothing with so small a network
            "n_collectors": 1,
            "envs_per_collector": 16,
            "queue_size": 64,
            "weights_every_steps": 256,
            "epoch_steps": 2_048,
            "total_timesteps": 122_880,
            "max_episode_steps": 300,
            "eval_every_epochs": 6,
            "n_eval_episodes": 100,
        },
        "full": {
            "batch_size": 128,
            "accumulate_grad_batches": 1,
            "batch_norm_momentum": 0.02,
            "replay_ratio": 4.0,
            "final_learning_rate": 1e-5,
            "n_steps": 3,
            "target_every_updates": 1,
            "tau": 0.005,
            "target_statistics": "batch",
            "show_jump_button": True,
            "learning_starts": 10_000,
            "exploration_steps": 200_000,
            "weights_every_steps": 1_024,
            "epoch_steps": 20_480,
            "total_timesteps": 2_048_000,
            "n_eval_episodes": 100,
        },
    },
}
# What `hotloop train WORKLOAD` uses if no flag chooses how to train: only those below may be given.
DEFAULT_PRESETS = {"mario": "quick"}
LEAVE_THE_PRESET = frozenset(
    {"--total-timesteps", "--stop-at-epochs", "--seed", "--level", "--difficulty", "--n-eval-episodes"}
    | {"--checkpoint", "--resume", "--tensorboard-log", "--capture", "--no-profiling", "--enable-profiling"}
    | {"--profiling-report", "--profiling-summary-freq", "--json"}
)
# Job shops of petri have their own settings if these flags do not choose how to train.
LEAVE_THE_JOB_SHOP = LEAVE_THE_PRESET | {"--net", "--instance", "--learner", "--checkpoint-every-steps"}
# A setting of several stages: a value found for one stage is not applied to the others.
STAGE_SETTING = "learner"
# Tuned settings stay valid when these differ.
IRRELEVANT = (
    *("stage", "folder", "episodes", "n_episodes", "stop_at_episodes", "stop_at_epochs"),
    *("timesteps", "total_timesteps", "batches"),
)


@dataclass(frozen=True)
class Chosen:
    """Settings that replace defaults, and the messages about them."""

    settings: dict[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    tuned: bool = False
    rate_per_s: float | None = None
    """Env steps per second that tuning measured with these settings."""


NOTHING_CHOSEN = Chosen()


def choice_flags(words: list[str]) -> dict[str, Any]:
    """Arguments of `choose` among the words typed: --preset, --tuned, --tuned-semantic and --stage.

    They determine the defaults, so they are read before all other flags.
    """
    flags = {word.replace("_", "-") for word in words}
    semantic = "--tuned-semantic" in flags
    return {
        "preset_name": _value_of("--preset", words),
        "tuned": semantic or "--tuned" in flags,
        "semantic": semantic,
        "stage": _value_of("--stage", words),
        "net": _value_of("--net", words),
        "instance": _value_of("--instance", words),
        "by_command": True,
        "given": frozenset(flag.partition("=")[0] for flag in flags if flag.startswith("--")),
    }


def _value_of(flag: str, words: list[str]) -> str | None:
    found = None
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def choose(
    workload: str,
    config: Any,
    preset_name: str | None,
    tuned: bool,
    semantic: bool,
    stage: str | None = None,
    given: frozenset[str] = frozenset(),
    by_command: bool = False,
    net: str | None = None,
    instance: str | None = None,
) -> Chosen:
    """Settings to start from. `config` has the defaults; `stage` is the one asked for, if any.

    `given`: the flags among the words typed; `--preset auto` measures nothing that they decide. `by_command`:
    the words are those of a command, which may have a preset by default. `net`, `instance`: those of petri.
    """
    if preset_name is not None and tuned:
        raise HotloopError("--preset and --tuned both choose settings; give one of the two.")
    if preset_name == AUTO:
        return settings_for_this_machine(workload, stage, given)
    if preset_name is not None:
        return preset_settings(workload, config, preset_name, given)
    if tuned:
        return tuned_settings(workload, semantic, stage)
    if workload in DEFAULT_PRESETS and by_command and given <= LEAVE_THE_PRESET:
        return preset_settings(workload, config, DEFAULT_PRESETS[workload], given)
    if workload == "petri" and net is not None and given <= LEAVE_THE_JOB_SHOP:
        return job_shop_settings(dataclasses.replace(config, net=Path(net), instance=instance or ""), given)
    return NOTHING_CHOSEN


def messages_before_training(workload: str, chosen: Chosen, config: Any) -> tuple[str, ...]:
    """What to print before the training starts."""
    different = tuned_with_other_settings(workload, config) if chosen.tuned else ""
    return (*chosen.messages, *([different] if different else []))


# ---- job shops


def job_shop_settings(config: Any, given: frozenset[str] = frozenset()) -> Chosen:
    """Settings for the job shop in petri's file; none for other nets and for a file that cannot be read.

    The message leaves out what the flags `given` decide.
    """
    from hotloop.rl.workloads import petri

    if not petri.is_job_shop(config):
        return NOTHING_CHOSEN
    try:
        found = petri.job_shop_settings(config)
    except HotloopError:  # said by the check of the settings
        return NOTHING_CHOSEN
    shown = _not_given({name: value for name, value in found.items() if value is not True}, given)
    return Chosen(found, (f"job shop: {_words(shown)}, learning rate and entropy bonus annealed",))


# ---- presets

AUTO = "auto"
# Stage of imitate -> the flags that decide what `--preset auto` would measure and choose for it.
DECIDED_BY = {
    "demos": {"--workers"},
    "bc": {"--loading", "--loading-workers", "--learner"},
    "rl": {"--n-envs", "--trainer"},
}


def settings_for_this_machine(
    workload: str,
    stage: str | None = None,
    given: frozenset[str] = frozenset(),
    *,
    cores: float | None = None,
    memory_free_bytes: int | None = None,
    gpus: int | None = None,
) -> Chosen:
    """The settings of `--preset auto`: those of the starting rules, to be measured against others.

    `stage` and `given` as in `choose`. The facts about the machine can be passed in.
    """
    if workload != "imitate":
        raise HotloopError(
            f"--preset auto chooses the workers of imitate; use hotloop tune {workload}, then --tuned."
        )
    if "--resume" in given:
        raise HotloopError(
            "--preset auto may choose other settings than the run to resume had; use the command that it "
            "printed when it was stopped."
        )
    cores = cores_granted() if cores is None else cores
    free = memory_available_bytes() if memory_free_bytes is None else memory_free_bytes
    gpus = len(accelerators(Path("/dev"))) if gpus is None else gpus
    rules = {one.name: one for one in starting_settings(cores)}
    workers, envs = rules["demonstration workers"], rules["envs"]
    stages = DECIDED_BY if stage in (None, "all") else {stage: DECIDED_BY.get(stage, set())}
    if stage == "bc":  # alone, its workers are those of the DataLoader
        stages = {"bc": DECIDED_BY["bc"] | {"--workers"}}
    fastest = tuple(name for name, flags in stages.items() if not given & flags)
    speedup = not given & {"--trainer", "--no-speedup"}
    # Stage -> setting, value, reason.
    chosen: dict[str, tuple[str, Any, str]] = {
        "demos": ("workers", workers.value, workers.reason),
        "rl": ("n_envs", envs.value, envs.reason),
        "bc": ("loading", "index", "the demonstrations fit into memory, so loading needs no processes"),
    }
    messages = [
        f"preset auto: {cores:g} cores granted, {size(free)} of memory free, "
        f"{'no GPU' if not gpus else 'a GPU, which the small networks of this task do not gain from'}",
    ]
    found: dict[str, Any] = {"speedup": speedup}
    for name, (setting, value, reason) in chosen.items():
        if name in stages and not given & (stages[name] - {"--learner", "--trainer"}):
            found[setting] = value
            messages.append(f"preset auto: {setting}={value} ({reason})")
    if speedup and fastest:
        found["fastest"] = fastest
        messages.append(
            f"preset auto: before the run, {', '.join(fastest)} are measured with other settings; "
            "the fastest are used"
        )
    return Chosen(found, tuple(messages))


def _not_given(found: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """The settings that no flag among `given` decides."""
    return {name: value for name, value in found.items() if f"--{name.replace('_', '-')}" not in given}


def preset_settings(
    workload: str, config: Any, preset_name: str, given: frozenset[str] = frozenset()
) -> Chosen:
    """The values of a preset as settings of a workload; messages leave out what the flags `given` decide."""
    own = OWN_PRESETS.get(workload, {}).get(preset_name)
    if own is not None:
        shown = {
            name: value
            for name, value in _not_given(own, given).items()
            if name in ("algo", "encoder", "size", "batch_size", "total_timesteps")
        }
        more = len(_not_given(own, given)) - len(shown)
        return Chosen(dict(own), (f"preset {preset_name}: {_words(shown)} and {more} more",))
    if preset_name == "full":
        raise HotloopError(f"preset 'full' is for mario; {workload} has full size by default.")
    if preset_name not in PRESETS:
        known = dict.fromkeys([*PRESETS, *OWN_PRESETS.get(workload, ())])
        raise HotloopError(f"{workload} has no preset {preset_name!r}; use one of {', '.join(known)}.")
    values = PRESETS[preset_name]
    fields = PRESET_FIELDS.get(workload) or _fields_by_name(config)
    found = {
        mine: getattr(values, theirs)
        for mine, theirs in fields.items()
        if getattr(values, theirs) is not None
    }
    messages = []
    if workload == "petri" and "n_envs" in found:  # keep the samples of a rollout
        fitting = largest_divisor(config.samples, found["n_envs"])
        if fitting != found["n_envs"]:
            messages.append(
                f"preset {preset_name}: n_envs={fitting} instead of {found['n_envs']}, "
                f"which does not divide n_envs * n_steps = {config.samples}"
            )
        found |= {"n_envs": fitting, "n_steps": config.samples // fitting}
    messages.insert(
        0,
        f"preset {preset_name}: {_words(_not_given(found, given)) or 'flags decide all of it'}"
        if found
        else f"preset {preset_name} has no setting of {workload}",
    )
    used = {fields[mine] for mine in found if mine in fields}
    rest = {name: value for name, value in _values(values).items() if name not in used}
    if rest:
        messages.append(f"preset {preset_name}: {workload} has no setting for {_words(rest)}")
    return Chosen(found, tuple(messages))


def _fields_by_name(config: Any) -> dict[str, str]:
    """Settings that have the same name as a field of Preset."""
    mine = {field.name for field in dataclasses.fields(config)}
    return {field.name: field.name for field in dataclasses.fields(Preset) if field.name in mine}


def _values(values: Preset) -> dict[str, int]:
    return {name: value for name, value in dataclasses.asdict(values).items() if value is not None}


def largest_divisor(number: int, most: int) -> int:
    """The largest whole number up to `most` that divides `number`."""
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)


def preset_lines() -> tuple[tuple[str, str], ...]:
    """Name and values of every preset."""
    return tuple((name, _words(_values(values))) for name, values in PRESETS.items())


# ---- settings found by `hotloop tune`


def _recall_stages(workload: str, stage: str | None) -> list[Tuned]:
    """Results of tuning the workload, or each of its stages; at least one, or HotloopError."""
    names = stage_names(workload, stage)
    found = [result for result in map(recall, names) if result is not None]
    if not found:
        raise never_tuned(names[0])
    return found


def tuned_settings(workload: str, semantic: bool, stage: str | None = None) -> Chosen:
    """Settings that `hotloop tune` found here; those that may change learning only if `semantic`.

    For a workload with stages: of all stages that were tuned, unless `stage` names one.
    """
    found = _recall_stages(workload, stage)
    if len(stage_names(workload, stage)) == 1:
        return _chosen_from(found[0], semantic)
    settings: dict[str, Any] = {}
    messages: list[str] = []
    for result in found:
        chosen = _chosen_from(result, semantic)
        stage_name = result.target.rpartition(" ")[2]
        mine = dict(chosen.settings)
        for_stage = mine.pop(STAGE_SETTING, None)
        settings |= mine
        messages += [f"{stage_name}: {message}" for message in chosen.messages]
        if for_stage is not None:
            messages.append(
                f"{stage_name}: {STAGE_SETTING}={for_stage} is for that stage only; "
                f"--stage {stage_name} applies it"
            )
    return Chosen(settings, tuple(messages), tuned=True)


def _chosen_from(found: Tuned, semantic: bool) -> Chosen:
    if semantic and found.semantic:
        best, gain, rate_per_s = found.semantic, found.semantic_gain, found.semantic_rate_per_s
    else:
        best, gain, rate_per_s = found.safe, found.safe_gain, found.rate_per_s
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in best.items()}
    if settings:
        messages = [f"tuned: {_words(settings)} ({gain})"]
    else:
        messages = ["tuned: nothing faster was found, so your settings stay"]
    if semantic:
        messages += [f"tuned: {sentence}" for sentence in found.invariants]
    elif found.semantic:
        more = f"{_words(found.semantic)} ({found.semantic_gain})"
        messages.append(f"not applied, because it may change learning: {more}; --tuned-semantic applies it")
    return Chosen(settings, tuple(messages), tuned=True, rate_per_s=rate_per_s)


def tuned_with_other_settings(workload: str, config: Any) -> str:
    """One sentence about settings that had other values during tuning; "" if none had."""
    now = {k: v for k, v in dataclasses.asdict(config).items() if k not in (*NOT_TUNED, *IRRELEVANT)}
    other: dict[str, Any] = {}
    for found in _recall_stages(workload, getattr(config, "stage", None)):
        tuned = {*found.safe, *found.semantic}
        other |= {
            key: then
            for key, then in found.base.items()
            if key in now and key not in tuned and then not in (now[key], str(now[key]), _as_json(now[key]))
        }
    return f"it was tuned with {_words(other)}" if other else ""


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())
