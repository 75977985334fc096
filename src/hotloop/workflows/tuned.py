"""What `hotloop tune` and `hotloop train` share: targets by name, and settings found before."""

from __future__ import annotations

import dataclasses
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.machine.facts import cores_granted
from hotloop.tuning.cache import Tuned, elsewhere, recall
from hotloop.workflows.tune_knobs import stage_names
from hotloop.workflows.tune_script import ScriptTarget, Wish
from hotloop.workflows.tune_workloads import LEFT_OUT, WorkloadTarget

SHARED = "learner"  # a setting that several stages have, and that tuning finds for one
# where these differ, what was found holds all the same
UNIMPORTANT = (
    *("stage", "folder", "episodes", "n_episodes", "stop_at_episodes", "stop_at_epochs"),
    *("timesteps", "total_timesteps", "batches"),
)


def workload_target(name: str, config: Any, also: tuple[str, ...] = ()) -> WorkloadTarget:
    """A workload of ours with its settings, on the cores granted here."""
    return WorkloadTarget(name, config, cores_granted(), also)


def script_target(
    command: tuple[str, ...], values: tuple[str, ...] = (), safe: tuple[str, ...] = (), threads: bool = True
) -> ScriptTarget:
    """A command of the user's, on the cores granted here."""
    return ScriptTarget(command, cores_granted(), Wish(values, safe, threads))


def recalled(name: str) -> Tuned:
    """What tuning found on this machine with these versions; HotloopError when it never did."""
    found = recall(name)
    if found is None:
        raise _never(name)
    return found


def _never(name: str) -> HotloopError:
    why = ", only with other hardware or other versions" if elsewhere(name) else ", or not to a verdict"
    return HotloopError(f"{name} was not tuned on this machine{why}; run: hotloop tune {name}")


def _recalled_stages(workload: str, stage: str | None) -> list[Tuned]:
    """What tuning found for the workload, or for those of its stages that were tuned, at least one."""
    names = stage_names(workload, stage)
    found = [one for one in map(recall, names) if one is not None]
    if not found:
        raise _never(names[0])
    return found


def tuned_settings(
    name: str, semantic: bool, stage: str | None = None
) -> tuple[dict[str, Any], tuple[str, ...], float | None]:
    """Settings that tuning found, to stand in for defaults, what is done, in sentences, and the env steps per
    second that were seen with them.

    Without `semantic` only those that change nothing but the speed. Of a workload with stages those of all
    stages that were tuned, unless one stage is meant.
    """
    found = _recalled_stages(name, stage)
    if len(stage_names(name, stage)) == 1:
        return _settings_of(found[0], semantic)
    changes: dict[str, Any] = {}
    said: list[str] = []
    for one in found:
        mine, words, _ = _settings_of(one, semantic)
        shared = mine.pop(SHARED, None)
        where = one.target.rpartition(" ")[2]
        changes |= mine
        said += [f"{where}: {sentence}" for sentence in words]
        if shared is not None:
            said.append(f"{where}: {SHARED}={shared} is for that stage alone; --stage {where} applies it")
    return changes, tuple(said), None


def _settings_of(found: Tuned, semantic: bool) -> tuple[dict[str, Any], tuple[str, ...], float | None]:
    if semantic and found.semantic:
        chosen, gain, rate_per_s = found.semantic, found.semantic_gain, found.semantic_rate_per_s
    else:
        chosen, gain, rate_per_s = found.safe, found.safe_gain, found.rate_per_s
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in chosen.items()}
    if changes:
        said = [f"tuned: {_words(changes)} ({gain})"]
    else:
        said = ["tuned: nothing faster was found, so the settings are kept"]
    if semantic:
        said += [f"tuned: {sentence}" for sentence in found.invariants]
    elif found.semantic:
        more = f"{_words(found.semantic)} ({found.semantic_gain})"
        said.append(f"not applied, because it may change learning: {more}; --tuned-semantic applies it")
    return changes, tuple(said), rate_per_s


def other_settings(name: str, config: Any) -> str:
    """What was set otherwise when the workload was tuned, in one sentence; "" for nothing."""
    now = {k: v for k, v in dataclasses.asdict(config).items() if k not in (*LEFT_OUT, *UNIMPORTANT)}
    other: dict[str, Any] = {}
    for found in _recalled_stages(name, getattr(config, "stage", None)):
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
