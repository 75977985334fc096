"""What every training run needs around its loop: settings, checkpoints, a learner, progress, stop requests.

These are leaves that `ppo.py`, `dqn.py`, `sac.py` and the others call; none of them owns a training loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, ParamSpec, Self, TextIO, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from hotloop import profile
from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import FileError, HotloopError
from hotloop._util.files import remove_unfinished, replacing
from hotloop._util.read_files import Reader
from hotloop._util.units import count, counted, duration
from hotloop.machine.facts import cores_granted, memory_bytes

Arrays = dict[str, NDArray[Any]]

_log = profile("log")
start_up = profile("start_up", "other")  # of a trainer, before its loop
shut_down = profile("shut_down", "other")  # after it: the last evaluation, freeing replay and networks

Given = ParamSpec("Given")
Result = TypeVar("Result")


# ---- settings


LARGEST_SEED = 2**62
MOST_DIVISORS = 100_000  # tried to suggest a batch size


def check_at_least(config: Any, minimum: float, *names: str) -> None:
    """Raise HotloopError for the first of these settings below `minimum`; None counts as not set."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not minimum <= value < math.inf:
            finite = " and finite" if value in (math.inf, -math.inf) or value != value else ""
            raise HotloopError(f"{name}={value} must be at least {minimum:g}{finite}.")


def check_positive(config: Any, *names: str) -> None:
    """Raise HotloopError for the first of these settings that is not a finite number above 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise HotloopError(f"{name}={value} must be above 0.")


def check_fraction(config: Any, *names: str) -> None:
    """Raise HotloopError for the first of these settings outside 0 .. 1."""
    for name in names:
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise HotloopError(f"{name}={getattr(config, name)} must be between 0 and 1.")


def check_net_arch(config: Any) -> None:
    if not config.net_arch or min(config.net_arch) < 1:
        raise HotloopError(f"net_arch={config.net_arch} must be widths of at least 1, such as (64, 64).")


def check_seed(config: Any) -> None:
    """Raise HotloopError unless the seed is one that numpy and torch take, with room for `seed + row`."""
    if not 0 <= config.seed <= LARGEST_SEED:
        raise HotloopError(f"seed={config.seed} must be a whole number from 0 to {LARGEST_SEED:,}.")


def check_batch_size(batch_size: int, samples: int) -> None:
    """Raise HotloopError unless batches of this size, at least 2, divide the samples of a rollout."""
    if batch_size >= 2 and samples % batch_size == 0:
        return
    small = [size for size in range(1, min(math.isqrt(samples), MOST_DIVISORS) + 1) if samples % size == 0]
    allowed = sorted({size for one in small for size in (one, samples // one) if size >= 2})
    near = sorted(sorted(allowed, key=lambda size: abs(math.log(size / max(batch_size, 1))))[:3])
    use = f"use {', '.join(map(str, near[:-1]))} or {near[-1]}" if len(near) > 1 else "use a longer rollout"
    raise HotloopError(
        f"batch_size={batch_size} does not divide n_envs * n_steps = {samples} into batches of at least 2; "
        f"{use}, or change n_envs or n_steps."
    )


def check_checkpoint(config: Any) -> None:
    """Raise HotloopError for a checkpoint or a log that could not be written, before training."""
    log: Path | None = getattr(config, "tensorboard_log", None)
    if log is not None:
        check_folder("tensorboard_log", log)
    path: Path | None = config.checkpoint
    if path is None:
        if config.resume:
            raise HotloopError("resume=True needs a checkpoint to resume from; set checkpoint to its path.")
        return
    if path.is_dir():
        raise HotloopError(f"checkpoint={path} is a folder; name a file in it, such as {path / 'agent'}.")
    # One that exists and is no file, such as a device, is refused when it is read or replaced.
    if not config.resume and path.is_file() and path.stat().st_size and not _is_safetensors(path):
        raise HotloopError(
            f"checkpoint={path} exists and is no checkpoint of an agent; name another file, or move it."
        )
    _check_writable(f"checkpoint={path}", path.absolute().parent, "name another file")


def _is_safetensors(path: Path) -> bool:
    try:
        with safe_open(str(path), framework="numpy"):
            return True
    except Exception:  # a dozen kinds, depending on what it is
        return False


def check_folder(name: str, folder: Path) -> None:
    """Raise HotloopError unless files can be made in the folder, or the folder itself can."""
    _check_writable(f"{name}={folder}", folder.absolute(), "name another folder")


def _check_writable(what: str, folder: Path, remedy: str) -> None:
    above = folder
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise HotloopError(f"{what} cannot be written: {above} is not a folder; {remedy}.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise HotloopError(f"{what} cannot be written: {above} does not allow it; {remedy}.")


def settings_as_json(config: Any) -> dict[str, Any]:
    """The fields of a config dataclass as JSON values: paths as text, tuples as lists."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return found


# ---- checkpoints: one safetensors file with every array and, as JSON in its header, everything else

FORMAT_VERSION = 3
# 3: has a checksum
# 2: settings have the names that Stable-Baselines3 uses; arrays of the envs are called rollout.*
# 1: hotloop 0.1

RENAMED_ARRAYS = {"position.": "rollout.", "learner.temperature": "learner.ent_coef"}  # prefixes, version 1
RENAMED_SETTINGS = {  # of version 1, in any algorithm
    "adam_epsilon": "adam_eps",
    "anneal": "anneal_lr",
    "capacity": "buffer_size",
    "checkpoint_every": "checkpoint_every_steps",
    "clip": "clip_range",
    "discount": "gamma",
    "entropy_weight": "ent_coef",
    "epochs": "n_epochs",
    "epsilon_end": "exploration_final_eps",
    "epsilon_fraction": "exploration_fraction",
    "epsilon_start": "exploration_initial_eps",
    "evaluate_every": "eval_every_steps",
    "evaluation_episodes": "n_eval_episodes",
    "first_log_std": "log_std_init",
    "hidden": "net_arch",
    "metrics": "tensorboard_log",
    "minibatch": "batch_size",
    "n_step": "n_steps",
    "normalise_advantages": "normalize_advantage",
    "num_envs": "n_envs",
    "prioritised": "prioritized",
    "steps": "n_steps",
    "target_every": "target_update_interval",
    "target_rate": "tau",
    "total_steps": "total_timesteps",
    "trace": "gae_lambda",
    "value_clip": "clip_range_vf",
    "value_weight": "vf_coef",
}

# Settings that never change the numbers of a run, so a resumed run may have others.
MAY_DIFFER = frozenset(
    {"total_timesteps", "learner", "threads", "stop_at_return", "n_eval_episodes", "allow_nonfinite"}
    | {"checkpoint", "checkpoint_every_steps", "resume", "tensorboard_log", "quiet"}
)

# Settings that checkpoints of earlier versions lack, with the values that those versions had.
ADDED_SETTINGS = {"anneal_ent_coef": False}


class CheckpointError(FileError):
    """The file is no complete checkpoint, or belongs to a run with other settings."""


class SavedState(TypedDict, total=False):
    """Types of what trainers save beside their arrays; each of them saves some of these."""

    env_steps: int
    updates: int
    actor_updates: int
    steps: int
    vector_steps: int
    collected: int
    iterations: int
    epochs: int
    episodes: int
    samples: int
    threads: int
    learner: str
    returns: list[float]
    lengths: list[float]
    distances: list[float]
    evaluations: list[tuple[int, float]]
    evaluated_at: int
    best: tuple[float, int]
    rng: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run saved."""

    arrays: Arrays
    """Weights, optimizer moments, buffers and env states by name."""
    state: dict[str, Any]
    """Counters and RNG states: whatever JSON holds."""
    config: dict[str, Any]
    """The settings of the run that saved it."""

    def part(self, name: str) -> Arrays:
        """The arrays that were saved under this part, without its prefix."""
        prefix = f"{name}."
        return {n.removeprefix(prefix): a for n, a in self.arrays.items() if n.startswith(prefix)}


def save_checkpoint(path: Path, arrays: Arrays, state: dict[str, Any], config: dict[str, Any]) -> None:
    """Replace `path` in one step: after a crash or a full disk, the old checkpoint is still there.

    Nothing is pickled, so loading a checkpoint never runs code. Raises OSError.
    """
    header = {
        "format_version": str(FORMAT_VERSION),
        "state": json.dumps(state),
        "config": json.dumps(config),
    }
    # safetensors returns arrays of rank 0 as rank 1 on some platforms, so they are saved as rank 1.
    at_least_1d = {name: np.ascontiguousarray(np.atleast_1d(array)) for name, array in arrays.items()}
    content = save(at_least_1d, metadata=header | {"checksum": _checksum(header, at_least_1d)})
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path)
    with replacing(path, durable=True) as file:
        file.write(content)


def _checksum(header: dict[str, str], arrays: Arrays) -> str:
    """Of everything that a checkpoint says, in no particular order of the file."""
    found = 0
    for name in ("format_version", "state", "config"):
        found = zlib.crc32(f"{name}={header[name]};".encode(), found)
    for name, array in sorted(arrays.items()):
        found = zlib.crc32(f"{name}:{array.dtype.str}{list(array.shape)};".encode(), found)
        found = zlib.crc32(array.reshape(-1).view(np.uint8).data, found) if array.size else found
    return f"crc32:{found:08x}"


def load_checkpoint(path: Path, upgrade: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Checkpoint:
    """Read a checkpoint of this or an earlier version, with the names of today.

    `upgrade` translates those settings of version 1 that became other settings, not only other names.
    Raises CheckpointError when it is missing, damaged, or of an unknown version.
    """
    if not os.path.lexists(path):
        raise CheckpointError(f"There is no checkpoint {path}; check the path, or train without resume.")
    reader = Reader(memory_bytes() or 1 << 40, CheckpointError, "resume from an earlier checkpoint")
    os.close(reader.open_file(path))  # only a regular file, and no more than fits into memory
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a dozen kinds, depending on what is damaged
        raise reader.fail(path, f"is truncated or damaged ({error})") from None
    version = header.get("format_version")
    known = [str(number) for number in range(1, FORMAT_VERSION + 1)]
    if version not in known or "state" not in header or "config" not in header:
        raise CheckpointError(
            f"{path} has checkpoint version {version!r}; this hotloop reads versions 1 to {FORMAT_VERSION}."
        )
    has_checksum = version == known[-1] or "checksum" in header
    if has_checksum and header.get("checksum") != _checksum(header, arrays):
        raise reader.fail(path, "is damaged: its content does not match its checksum")
    state, config = (reader.parse_json(path, header[name].encode()) for name in ("state", "config"))
    try:
        state, config = conform(state, SavedState, "state"), conform(config, dict[str, Any], "config")
    except Misfit as misfit:
        raise reader.fail(path, f"is damaged ({misfit})") from None
    if version == "1":
        arrays = {_renamed_array(name): array for name, array in arrays.items()}
        config = {RENAMED_SETTINGS.get(name, name): value for name, value in config.items()}
        with restoring(path):
            config = upgrade(config)
    return Checkpoint(arrays, state, config)


@contextlib.contextmanager
def restoring(path: Path | None) -> Iterator[None]:
    """Inside the block, whatever does not fit in the checkpoint at `path` becomes a CheckpointError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not fit this run ({type(error).__name__}: {error}); use the settings it was made "
            "with, or train without resume."
        ) from error


def _renamed_array(name: str) -> str:
    for old, new in RENAMED_ARRAYS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def save_run(
    path: Path, config: Any, *, env_steps: int, learner: Arrays, state: dict[str, Any], **parts: Arrays
) -> str | None:
    """Write the checkpoint of a run: `learner` and each of `parts` under its name, `state` as JSON.

    Returns None, or why it could not be written. That is also printed, and no reason to end a training:
    the checkpoint before is still there, and the next one may succeed.
    Raises TrainingDiverged instead of overwriting a good checkpoint with weights that are not finite.
    """
    largest = {name: float(np.abs(array).max()) for name, array in learner.items() if array.size}
    check_finite(largest, env_steps, path)
    parts = {"learner": learner, **parts}
    arrays = {f"{part}.{name}": array for part, named in parts.items() for name, array in named.items()}
    try:
        save_checkpoint(path, arrays, state, settings_as_json(config))
    except OSError as error:
        kept = "the one before is kept" if path.is_file() else "there is none yet"
        problem = f"the checkpoint {path} could not be written ({error.strerror}); {kept}"
        warn(f"hotloop: {problem}; training goes on")
        return problem
    return None


def warn(sentence: str) -> None:
    """Print to stderr, if there is anyone to read it."""
    with contextlib.suppress(OSError, AttributeError):
        print(sentence, file=sys.stderr, flush=True)


def load_run(
    config: Any,
    may_differ: frozenset[str] = MAY_DIFFER,
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Checkpoint | None:
    """The checkpoint that `config` asks to resume from; None when it does not ask.

    `upgrade`: see `load_checkpoint`.
    Raises CheckpointError when a setting that decides the numbers differs from the saved run's.
    """
    if not config.resume or config.checkpoint is None:
        return None
    saved = load_checkpoint(config.checkpoint, upgrade)
    check_same_settings(config.checkpoint, saved.config, settings_as_json(config), may_differ)
    return saved


MOST_DIFFERENCES = 6  # named in an error


def check_same_settings(
    path: Path, saved: dict[str, Any], own: dict[str, Any], may_differ: frozenset[str]
) -> None:
    """Raise CheckpointError when a setting outside `may_differ` is not what the saved run had."""
    saved = {name: value for name, value in ADDED_SETTINGS.items() if name in own} | saved
    names = sorted((saved.keys() | own.keys()) - may_differ)
    missing = repr(object())
    wrong = [
        f"{name} was {saved.get(name)!r}, is {own.get(name)!r}"
        for name in names
        if json.dumps(saved.get(name, missing)) != json.dumps(own.get(name, missing))
    ]
    if not wrong:
        return
    foreign = sorted(saved.keys() - own.keys() - may_differ)
    if len(foreign) > MOST_DIFFERENCES and own.keys() - saved.keys():
        raise CheckpointError(
            f"{path} is an agent of another trainer (it has {foreign[0]}, {foreign[1]} and "
            f"{len(foreign) - 2} more settings that are unknown here); use another checkpoint path."
        )
    more = len(wrong) - MOST_DIFFERENCES
    shown = wrong[:MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
    raise CheckpointError(
        f"{path} belongs to a run with other settings ({'; '.join(shown)}); "
        "use the same settings, or another checkpoint path."
    )


# ---- Adam

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8


def make_adam(module: torch.nn.Module, learning_rate: float, eps: float = ADAM_EPS) -> torch.optim.Adam:
    """Adam whose moments exist from the start, so that they can be saved and loaded before the first step."""
    adam = torch.optim.Adam(module.parameters(), lr=learning_rate, betas=ADAM_BETAS, eps=eps, fused=True)
    for weight in module.parameters():
        adam.state[weight] = {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return adam


def weights_and_moments(module: torch.nn.Module, adam: torch.optim.Adam) -> Arrays:
    """For a checkpoint: copies as `weights.NAME`, `first.NAME` and `second.NAME`, and Adam's `steps`."""
    found: Arrays = {}
    for name, weight in module.named_parameters():
        moments = adam.state[weight]
        found["steps"] = np.array([int(moments["step"])], dtype=np.int64)
        found[f"weights.{name}"] = weight.detach().numpy().copy()
        found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
        found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
    return found


def load_weights_and_moments(
    module: torch.nn.Module, adam: torch.optim.Adam, arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Restore what `weights_and_moments` returned for a module of the same shape."""
    load_weights(module, arrays, "weights.")
    for name, weight in module.named_parameters():
        moments = adam.state[weight]
        _fill(moments["exp_avg"], f"first.{name}", arrays)
        _fill(moments["exp_avg_sq"], f"second.{name}", arrays)
        moments["step"].fill_(float(arrays["steps"][0]))


def load_weights(module: torch.nn.Module, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> None:
    """Copy `arrays[prefix + NAME]` into the parameters of a module."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            _fill(weight, prefix + name, arrays)


def _fill(tensor: torch.Tensor, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy an array of the same shape; torch would repeat a smaller one. Raises KeyError or ValueError."""
    array = arrays[name]
    if array.shape != (tuple(tensor.shape) or (1,)):
        raise ValueError(f"{name} has the shape {list(array.shape)}, not {list(tensor.shape)}")
    tensor.copy_(torch.from_numpy(array).reshape(tensor.shape))


# ---- learners

THREADS_PAY_OFF_MS = 5.0  # a gradient step faster than this never gains from more threads
COMPILE_PAYS_OFF_S = 120.0  # torch.compile takes up to a minute, so less learning than this never pays for it


def best_of(attempts: int, call: Callable[[], Any]) -> float:
    """The shortest time of one call in milliseconds; the first attempt, which may compile, is not counted."""
    call()
    best_s = math.inf
    for _ in range(attempts):
        began = time.perf_counter()
        call()
        best_s = min(best_s, time.perf_counter() - began)
    return 1000 * best_s


def fastest_learner(
    time_ms: Callable[[str], float], names: Iterable[str], updates: float, quiet: bool
) -> str:
    """Time the learners `names` and return the fastest one's name, logging the choice to stderr.

    `time_ms(name)` measures one of `updates` gradient steps. `compiled` joins only when there is so much to
    learn that compiling it can pay off.
    """
    times_ms = {name: time_ms(name) for name in names}
    if min(times_ms.values()) * updates / 1000 > COMPILE_PAYS_OFF_S:
        times_ms["compiled"] = time_ms("compiled")
    fastest = min(times_ms, key=lambda name: times_ms[name])
    if not quiet:
        ranked = sorted(times_ms.items(), key=lambda item: item[1])
        shown = ", ".join(f"{name} {ms:.3g} ms" for name, ms in ranked)
        print(f"hotloop: learner {fastest} (one gradient step: {shown})", file=sys.stderr)
    return fastest


def choose_threads(time_ms: Callable[[], float], quiet: bool) -> float:
    """Leave torch at the faster of one thread and all cores; returns the time of one gradient step with it.

    `time_ms()` measures one gradient step. Short steps are not tried with more threads: they never gain.
    """
    one_ms = time_ms()
    cores = int(cores_granted())
    if one_ms < THREADS_PAY_OFF_MS or cores < 2:
        return one_ms
    torch.set_num_threads(cores)
    all_ms = time_ms()
    if all_ms > 0.9 * one_ms:
        torch.set_num_threads(1)
    if not quiet:
        print(
            f"hotloop: torch uses {counted(torch.get_num_threads(), 'thread')} (one gradient step: "
            f"{one_ms:.3g} ms with 1, {all_ms:.3g} ms with {cores})",
            file=sys.stderr,
        )
    return min(one_ms, all_ms)


_ending: ContextVar[contextlib.ExitStack | None] = ContextVar("ending", default=None)


def frees_in_region(train: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a trainer that calls `begin_shut_down`: what it frees by returning is in that region."""

    @functools.wraps(train)
    def outer(*given: Given.args, **named: Given.kwargs) -> Result:
        with contextlib.ExitStack() as ending:
            before = _ending.set(ending)
            try:
                return train(*given, **named)
            finally:
                _ending.reset(before)

    return outer


def begin_shut_down() -> None:
    """Enter the region `shut_down` until the trainer, decorated with `frees_in_region`, has returned."""
    ending = _ending.get()
    if ending is not None:
        ending.enter_context(shut_down)


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set the number of torch's intra-op threads inside the block and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h
DYNAMIC_BYTES = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}  # where glibc's own rule ends
KEPT_BYTES = 1 << 30


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed blocks of up to 1 GiB in the process inside the block, instead of returning them to Linux.

    Torch allocates the results of a layer anew in each batch, and memory that went back to Linux in between
    comes again as empty pages: 27 page faults for each transition that mario's learner learns from, 8 % of
    its CPU time. Has an effect with glibc only. Afterwards freed memory goes back, and the limits are those
    that glibc chooses at most by its own rule.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt"):
        yield
        return
    for limit in DYNAMIC_BYTES:
        libc.mallopt(limit, KEPT_BYTES)
    try:
        yield
    finally:
        for limit, size in DYNAMIC_BYTES.items():
            libc.mallopt(limit, size)
        libc.malloc_trim(0)


# ---- results


@dataclass(frozen=True)
class RunResult:
    """What every trainer returns; see the algorithm's own result for the network."""

    learner: str
    """The learner that was used: fused, torch or compiled."""
    env_steps: int
    """Env steps so far, those before a resume included; resets do not count."""
    resumed_at: int
    """Env steps of the checkpoint that this run continued from; 0 for a new run."""
    updates: int
    """Gradient steps so far."""
    episodes: int
    """Episodes finished so far."""
    seconds: float
    """Wall time of this run's training loop, without start-up and compilation."""
    mean_return: float | None
    """Mean return of the last 100 episodes; None before the first has finished."""
    evaluation_return: float | None
    """Mean return of the evaluation after training; None without one."""
    stopped_by: str | None
    """SIGTERM, SIGINT or stop_at_return; None when all steps were taken."""
    unsaved: str | None = field(default=None, kw_only=True)
    """Why the last checkpoint could not be written; None if it was, or if none was wanted."""
    nonfinite: int = field(default=0, kw_only=True)
    """Rewards and observations that were NaN or infinite, with allow_nonfinite."""

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of the training loop."""
        return (self.env_steps - self.resumed_at) / self.seconds if self.seconds > 0 else math.nan


# ---- stop requests


class StopRequests:
    """Inside the block, SIGTERM and Ctrl-C ask the trainer to stop at its next safe point.

    A second Ctrl-C interrupts at once. Signals only reach the main thread; elsewhere nothing is installed.
    Blocks may nest: a request reaches all of them, also those that begin after it.
    """

    _open: ClassVar[list[StopRequests]] = []

    def __init__(self) -> None:
        self.by: str | None = None
        """The name of the signal that arrived, if one did."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self.by = self._open[-1].by if self._open else None
            self._open.append(self)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self in self._open:
            self._open.remove(self)
        return None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.by is not None:
            raise KeyboardInterrupt
        if self.by is None:  # not by `print`, which the signal may have interrupted
            with contextlib.suppress(OSError):
                os.write(2, b"\nhotloop: stopping at the next safe point; Ctrl-C stops at once\n")
        for one in self._open:
            one.by = one.by or signal.Signals(number).name


class FinalEvaluation(StopRequests):
    """A block that evaluates after training: a request to stop ends the block, not the program.

    What is evaluated calls `end_if_stopped` now and then, and the block assigns its results at its end.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        super().__exit__(kind, error, trace)
        return kind is _EvaluationStoppedError


class _EvaluationStoppedError(Exception):
    """Ends the block of a FinalEvaluation."""


def end_if_stopped() -> None:
    """End the FinalEvaluation that is under way if it was asked to stop; elsewhere, do nothing."""
    if StopRequests._open and isinstance(StopRequests._open[-1], FinalEvaluation) and stop_requested():
        raise _EvaluationStoppedError


def stop_requested() -> bool:
    """Whether a block of `StopRequests` that is open now was asked to stop; for loops far below it."""
    return stop_signal() is not None


def stop_signal() -> str | None:
    """The signal that asked a block of `StopRequests` that is open now to stop; None if none did."""
    return next((one.by for one in StopRequests._open if one.by is not None), None)


# ---- progress


class RecentEpisodes:
    """Returns and lengths of the last episodes, and the number of all episodes so far."""

    def __init__(self, keep: int = 100):
        self.returns: deque[float] = deque(maxlen=keep)
        self.lengths: deque[int] = deque(maxlen=keep)
        self.finished = 0

    def add(self, returns: Iterable[float], lengths: Iterable[int]) -> None:
        """Add finished episodes, oldest first."""
        added = list(returns)
        self.returns.extend(added)
        self.lengths.extend(lengths)
        self.finished += len(added)

    @property
    def mean_return(self) -> float | None:
        """None before the first episode has finished."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

    def reached(self, wanted: float | None) -> bool:
        """Whether the mean return over a full window is at least `wanted`."""
        full = len(self.returns) == self.returns.maxlen
        mean = self.mean_return
        return wanted is not None and full and mean is not None and mean >= wanted

    def state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON values."""
        return {"episodes": self.finished, "returns": list(self.returns), "lengths": list(self.lengths)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.add(state["returns"], state["lengths"])
        self.finished = state["episodes"]


def progress_words(head: str, mean_return: float | None, note: str, columns: int | None) -> str:
    """One progress line; when it does not fit into `columns`, the return is dropped first."""
    said = [head, "" if mean_return is None else f"return {mean_return:.1f}", note]
    line = "  ".join(part for part in said if part)
    if columns is not None and len(line) >= columns:
        line = "  ".join(part for part in (head, note) if part)[: columns - 1]
    return line


class ProgressLine:
    """Steps per second, time left and a note on stderr: redrawn on a terminal, otherwise every 10 s.

    The time left follows from the rate since the first update: what comes before is mostly warm-up.

    With `total_episodes`, the run ends after that many episodes, so progress is counted in them.
    """

    def __init__(
        self,
        total_timesteps: int,
        done_steps: int = 0,
        *,
        total_episodes: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        quiet: bool = False,
    ):
        self._stream = sys.stderr if stream is None else stream
        self._redraw = self._stream.isatty()
        self._every_s = 0.2 if self._redraw else 10.0
        self._clock = clock
        self._quiet = quiet
        self._unit = "steps" if total_episodes is None else "episodes"
        self._total = total_timesteps if total_episodes is None else total_episodes
        self._began_steps = done_steps
        self._began_s = clock()
        self._due_s = self._began_s + self._every_s
        self._drawn = False
        self._first: tuple[float, int] | None = None  # time and progress at the first update

    def update(self, steps: int, mean_return: float | None, note: str = "", *, episodes: int = 0) -> None:
        """Print the line if it is due."""
        now = self._clock()
        done = steps if self._unit == "steps" else episodes
        if self._first is None:
            self._first = now, done
        if self._quiet or now < self._due_s:
            return
        self._due_s = now + self._every_s
        steps_per_s = (steps - self._began_steps) / max(now - self._began_s, 1e-9)
        head = f"{count(done)} / {count(self._total)} {self._unit}  {count(steps_per_s)} steps/s"
        since_s, since = self._first
        if since < done < self._total and now > since_s:
            left_s = (self._total - done) * (now - since_s) / (done - since)
            head += f"  {duration(left_s * 1e9)} left"
        columns = shutil.get_terminal_size().columns if self._redraw else None
        words = progress_words(head, mean_return, note, columns)
        with contextlib.suppress(OSError):  # a closed pipe or a full disk is no reason to end a training
            self._stream.write(f"\r\033[K{words}" if self._redraw else f"{words}\n")
            self._stream.flush()
        self._drawn = self._redraw

    def close(self) -> None:
        """End the line, so that what follows starts on a new one."""
        if self._drawn:
            with contextlib.suppress(OSError):
                self._stream.write("\n")
                self._stream.flush()


def sb3_mean_return(model: Any) -> float | None:
    """Mean return of the last episodes that a model of Stable-Baselines3 saw; None before the first."""
    episodes = list(model.ep_info_buffer or [])
    return sum(episode["r"] for episode in episodes) / len(episodes) if episodes else None


class TensorboardLog:
    """Scalars for TensorBoard; without a folder nothing is written."""

    def __init__(self, folder: Path | None):
        self._writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard.writer import SummaryWriter
            except ImportError as missing:
                raise HotloopError(
                    f"tensorboard_log={folder} needs the package 'tensorboard' ({missing}); "
                    "install it with: pip install tensorboard, or leave tensorboard_log out."
                ) from missing
            self._writer = SummaryWriter(str(folder))

    def write(self, steps: int, values: Mapping[str, float | None]) -> None:
        """Write the values that are known at this number of env steps; None is skipped."""
        if self._writer is not None:
            try:
                with _log:
                    for name, value in values.items():
                        if value is not None:
                            self._writer.add_scalar(name, value, steps)
            except OSError as error:  # its thread met a full disk; there will be no more points
                warn(f"hotloop: the log for TensorBoard ends at {steps:,} steps ({error}); training goes on")
                self._writer = None

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


# ---- divergence


class TrainingDiverged(HotloopError):
    """A loss or weight became NaN or infinite."""


def check_finite(values: Mapping[str, float], steps: int, checkpoint: Path | None) -> None:
    """Raise TrainingDiverged when one of `values` is NaN or infinite; the message names what was kept."""
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        kept = (
            f"the last good checkpoint is {checkpoint}"
            if checkpoint is not None and checkpoint.is_file()
            else "no checkpoint had been written yet"
        )
        raise TrainingDiverged(
            f"Training diverged at {steps:,} env steps: {', '.join(wrong)}; {kept}. "
            "Try a smaller learning_rate or max_grad_norm, or check the rewards."
        )


# ---- where the time of a stage goes


class Stopwatch:
    """Seconds spent in a few named parts of a stage, which do not nest.

    A capture explains a run in detail afterwards; a stage that prints its own split needs no capture.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.seconds: dict[str, float] = {}
        self.clock = clock

    def part(self, name: str, region: AbstractContextManager[Any] | None = None) -> StopwatchPart:
        """A reusable context manager whose time is added to `name`.

        `region` is entered with it, so that one `with` serves both the capture and the split.
        """
        self.seconds.setdefault(name, 0.0)
        return StopwatchPart(self, name, region if region is not None else nullcontext())

    def add(self, name: str, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


class StopwatchPart:
    """A place in the code whose time belongs to one part of a stopwatch."""

    def __init__(self, watch: Stopwatch, name: str, region: AbstractContextManager[Any]):
        self._seconds, self._clock, self._name, self._region = watch.seconds, watch.clock, name, region
        self._began = 0.0

    def __enter__(self) -> None:
        self._region.__enter__()
        self._began = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds[self._name] += self._clock() - self._began
        self._region.__exit__(kind, error, trace)
