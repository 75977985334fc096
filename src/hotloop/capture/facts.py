"""capture.json and the small files beside it: what they hold, checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import CaptureError, FileError
from hotloop._util.read_files import Reader, files_in
from hotloop._util.visible import visible
from hotloop.capture.folder import FACTS, FORMAT_VERSION
from hotloop.capture.secrets import facts_without_secrets

_BESIDE = Reader(16 << 20, CaptureError, follow=False)
_PROBLEMS = Reader(1 << 20, CaptureError, follow=False)


class Machine(TypedDict, total=False):
    """The computer of a run."""

    host: str
    system: str
    cpu: str
    cores_granted: float | None
    cores_present: int | None
    memory_bytes: int | None
    load_1min: float | None
    threads_env: dict[str, str]


class Lines(TypedDict):
    """Lines of the user's code sampled outside all regions."""

    samples: int
    lines: dict[str, int]


class Env(TypedDict):
    """A kind of env that a process has stepped."""

    num_envs: int


class LibraryModel(TypedDict):
    """A model of Stable-Baselines3 that began to learn: names of classes, and the type of its device."""

    algorithm: str
    policy: str
    features_extractor: str
    device: str
    action_space: NotRequired[str]  # since 0.2, as the next one
    use_sde: NotRequired[str]


class BoostedModel(TypedDict):
    """What `hotloop boost` put into a model, and what its audits found."""

    model: str
    boosted: str | None
    reason: str | None
    gradient_steps: int
    audits_passed: int
    audits_failed: int
    largest_mean_difference: float | None
    kind: NotRequired[str]  # since 0.2: module, optimizer or function of plain torch, else a model
    calls: NotRequired[int]
    switched_at_env_step: NotRequired[int | None]


class RayTimes(TypedDict):
    """When tasks of Ray were submitted and began, and how actors started; monotonic times of that node."""

    node: str
    submitted: dict[str, tuple[str, int]]  # task -> name, time
    began: dict[str, tuple[int]]
    created: dict[str, tuple[str, int]]  # actor -> class, time
    started: dict[str, tuple[int, int]]  # begin and end of its __init__


SampledFrames = list[tuple[str, int, int]]  # outermost first: file, first line of the function, line


class UnusedGradients(TypedDict):
    """Backward passes from one line that compute gradients of parameters which nobody uses."""

    frames: SampledFrames
    passes: int
    of_passes: int  # from that line, that were looked at
    elements: int  # of these parameters
    of_elements: int  # of all that get a gradient
    modules: list[str]  # that nobody trains
    total_ns: int  # of all nodes of the graph; 0: not timed
    needless_ns: int  # of nodes that lead to such parameters alone
    weights_ns: int  # of nodes that lead to others as well
    changes: bool  # copied over now and then, as target networks are
    attention: bool  # some belong to torch's own attention layers
    # Since 0.2: modules that another optimizer trains, whose gradients of these passes are cleared unread
    discarded: NotRequired[list[str]]
    wanted: NotRequired[list[str]]  # modules whose gradients are stepped, if these are all
    partly_frozen: NotRequired[bool]  # some parameters of `discarded` are frozen anyway
    keeps_graph: NotRequired[bool]  # some pass leaves its graph to another one
    folds: NotRequired[bool]  # which product of matrices torch takes may depend on what needs gradients


class Gradients(TypedDict):
    """What was learnt by looking at some backward passes."""

    passes: int
    windows: int  # stretches of the run in which passes were looked at
    unused: list[UnusedGradients]
    known: NotRequired[list[SampledFrames]]  # lines of passes whose gradients were followed to their end
    readers: NotRequired[list[tuple[str, int]]]  # file and line of code that was seen to read gradients


class Positions(TypedDict):
    """Calls of a module with sequences of which a loss leaves out some steps."""

    frames: SampledFrames
    backward: SampledFrames
    kind: str  # Linear, Embedding, LSTM, GRU or RNN
    gradients: (
        bool  # False: from what it was given; then the steps after `last` are the same in all sequences
    )
    state_is_used: bool  # by the loss: the state after the last step
    calls: int
    windows: int
    sequences: float
    steps: float
    first: tuple[int, int]  # used step: least and most of all calls
    last: tuple[int, int]  # step behind the last used one
    used: float  # mean part of the steps up to the last used one of any sequence
    own_used: float  # the same for each sequence


class Library(TypedDict, total=False):
    """What one process knew about its libraries."""

    pid: int
    envs: list[Env]
    policy_rows: list[int]
    models: list[LibraryModel]
    boost: list[BoostedModel]
    data_parallel: dict[str, int]
    ray_tasks: RayTimes
    gradients: Gradients
    positions: list[Positions]


class Facts(TypedDict, total=False):
    """capture.json as far as hotloop reads it; all else is kept as it is."""

    hotloop_version: str
    command: list[str]
    working_folder: str | None
    run_id: str | None
    joinable: bool
    config: dict[str, Any]
    seeds: dict[str, Any]
    started_at_ns: int | None
    ended_at_ns: int | None
    exit_status: str | None
    pid: int
    machine: Machine
    limits: dict[str, float] | None
    versions: dict[str, str]
    git_hash: str | None
    clock: str
    core: str
    region_cost_ns: float | None
    device: str | None
    device_policy: str | None
    lines: Lines
    libraries: list[Library]
    figures: dict[str, Any]
    redacted: list[str]


def read_facts(folder: Path) -> dict[str, Any]:
    """The contents of capture.json; raises CaptureError when the folder is not a readable capture."""
    file = folder / "capture.json"
    if not folder.exists():
        raise CaptureError(f"There is no capture at {folder}: no such file or folder.")
    if not folder.is_dir():
        raise CaptureError(f"{folder} is not a capture: a capture is a folder.")
    if not file.is_symlink() and not file.exists():
        raise CaptureError(
            f"{folder} is not a capture: it has no capture.json; name the folder that a recording wrote."
        )
    facts = FACTS.read_object(file, lambda data: _check_version(data, folder, file))
    try:
        return facts_without_secrets(conform(facts, Facts, "capture.json"))
    except Misfit as misfit:
        raise FACTS.fail(file, f"is damaged ({misfit})") from None


def _check_version(facts: Any, folder: Path, file: Path) -> None:
    version = facts.get("format_version") if isinstance(facts, dict) else None
    if type(version) is not int or version < 1:
        raise FACTS.fail(file, f"cannot be read (its format_version is {version!r})")
    if version > FORMAT_VERSION:
        writer = visible(str(facts.get("hotloop_version", "unknown")))
        raise CaptureError(
            f"{folder} was written by hotloop {writer} in capture format {version}; this hotloop reads up to "
            f"{FORMAT_VERSION}. Update hotloop to read it."
        )


def read_lines(folder: Path, warnings: list[str]) -> dict[str, Any]:
    """Lines of the user's code sampled outside all regions, added up over all processes."""
    total: dict[str, Any] = {"samples": 0, "lines": {}}
    for data in _read_all(folder, Lines, warnings):
        total["samples"] += data["samples"]
        for line, count in data["lines"].items():
            total["lines"][line] = total["lines"].get(line, 0) + count
    return total


def read_libraries(folder: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """What each process knew about its libraries."""
    return _read_all(folder, Library, warnings)


def read_problems(folder: Path, warnings: list[str]) -> list[str]:
    """What processes could not record, one sentence each, without repetitions."""
    sentences: dict[str, None] = {}
    for file in files_in(folder, ".txt", CaptureError):
        try:
            text = _PROBLEMS.read_bytes(file).decode("utf-8", "replace")
        except FileError as problem:
            warnings.append(visible(f"left out: {problem}"))
            continue
        sentences |= dict.fromkeys(visible(line) for line in text.splitlines())
    return list(sentences)


def _read_all(folder: Path, kind: Any, warnings: list[str]) -> list[dict[str, Any]]:
    """The JSON files of a folder; those that cannot be read are named in `warnings`."""
    found = []
    for file in files_in(folder, ".json", CaptureError):
        try:
            found.append(conform(_BESIDE.read_json(file), kind, file.name))
        except (FileError, Misfit) as problem:
            warnings.append(visible(f"left out {file.name}: {problem}"))
    return found
