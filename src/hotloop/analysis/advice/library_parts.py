"""Advice about parts of libraries that ought to take little time: collating, progress bars, checks ..."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.advice.idiom_places import explained_by_idioms
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise, lower_first, per_unit
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.slow_idioms import COLD_CODE, NO_COLD, rest_faster
from hotloop.analysis.advice.user_code import in_user_code
from hotloop.analysis.findings import Claim, Recommendation, Safety, short_site
from hotloop.analysis.line_samples import BLOCKS, LineSamples, waits
from hotloop.analysis.parsed_source import walk_source
from hotloop.capture.samples import FunctionSource, SampledPath

COMPILERS = ("numba.core.", "llvmlite.", "torch._dynamo.", "torch._inductor.", "jax._src.")
# Checks of arguments, settings and containers before scikit-learn computes
SKLEARN_CHECKS = (
    "sklearn.utils.",
    "sklearn.base.",
    "sklearn._config",
    "sklearn.externals.",
    "inspect.",
    "narwhals.",
)
LATE = 0.15  # part of all compilation that falls into the last quarter of training, if it goes on
LEAST_BURSTS = 5  # of compilation with other work in between; at its start a script compiles a few functions


def _is_proxy_call(path: SampledPath) -> bool:
    """A method of a Manager's proxy, which `multiprocessing` makes from a string."""
    return path.called.startswith("string.") and path.innermost.startswith("multiprocessing.")


@dataclass(frozen=True)
class _Part:
    """A part of a library that ought to take little time."""

    modules: tuple[str, ...]  # beginnings of its functions' names
    name: str
    title: str
    why: str
    remedy: str
    saved: tuple[float, float, float]
    safety: Safety = "safe"
    takes: tuple[str, ...] = ()  # ends of the user's functions that the part calls and that go away with it
    takes_users: bool = False  # also counts where the user's code calls it directly
    with_waits: bool = False  # also takes time in which the same library call waits
    also: Callable[[SampledPath], bool] = lambda _: False  # further samples that go away with it
    only_if: Callable[[LineSamples], bool] = lambda _: True  # further evidence
    chills: bool = False  # whether code that runs after it finds cold caches
    again: bool = False  # only where it happens all through training, not at its beginning or end alone
    backward: float = 0.0  # part of backward passes that goes away with it, though they show nothing of it


def _uses_pufferlib(lines: LineSamples) -> bool:
    return any(path.called.startswith("pufferlib.pufferl.") for path in lines.paths)


def _returns_much_info(source: FunctionSource) -> bool:
    """Whether a class with a `step` makes dicts with three entries or more, as large infos are."""
    classes = [n for n in walk_source(source) if isinstance(n, ast.ClassDef)]
    envs = [c for c in classes if any(isinstance(n, ast.FunctionDef) and n.name == "step" for n in c.body)]
    return any(isinstance(n, ast.Dict) and len(n.keys) >= 3 for env in envs for n in ast.walk(env))


def _still_compiles(lines: LineSamples) -> bool:
    """Whether compilation comes back again and again, to the end of training."""
    among = lines.among(lines.paths_where(lambda path: path.innermost.startswith(COMPILERS)))
    whole = float(lines.weight_ns[among].sum())
    late = float(lines.weight_ns[among & (lines.block >= BLOCKS * 3 // 4)].sum())
    bursts = lines.bursts(np.unique(lines.path[among]).tolist())
    return whole > 0 and late / whole >= LATE and bursts >= LEAST_BURSTS


def _checks_more_than_it_computes(lines: LineSamples) -> bool:
    """Whether calls of scikit-learn spend their time on checks of what they are given, as for single rows."""
    calls = [n for n, path in enumerate(lines.paths) if path.called.startswith("sklearn.")]
    checks = [n for n in calls if lines.paths[n].innermost.startswith(SKLEARN_CHECKS)]
    return lines.share_of(checks) > 0.4 * lines.share_of(calls)


PARTS = (
    _Part(
        ("torch.utils.data._utils.collate", "torch.utils.data._utils.fetch", "torch.utils.data.dataset."),
        "collating",
        "Yield whole batches, do not collate single samples",
        "The DataLoader fetches samples one at a time and collates them into a batch in Python.",
        "Let the dataset index its arrays once for a whole batch and yield ready batches: "
        "DataLoader(dataset, batch_size=None), or no loader at all for data that fits into memory.",
        (0.6, 0.9, 0.98),
        takes=("__getitem__", "__iter__"),
    ),
    _Part(
        (
            *("numba.core.", "numba.np.", "llvmlite.", "torch._dynamo.", "torch._inductor."),
            *("jax._src.compiler", "jax._src.interpreters", "jax._src.pjit", "torch.jit._script"),
        ),
        "compiling_again",
        "Compile functions once, not again and again during training",
        "Functions are compiled all through training, not only at its start: a compiled function is defined "
        "anew (a closure with numba.njit, jax.jit of a lambda), or its arguments have new types or shapes.",
        "Define the compiled function once at module level and pass what changes as arguments of the same "
        "types and shapes.",
        (0.85, 0.97, 1.0),
        takes_users=True,
        only_if=_still_compiles,
    ),
    _Part(
        ("torch._tensor_str", "numpy.core.arrayprint", "numpy._core.arrayprint"),
        "formatting_tensors",
        "Do not format tensors as text in the loop",
        "Formatting a tensor or array takes hundreds of microseconds, whether or not the text is shown.",
        "Format plain numbers, and only when the line is printed.",
        (0.85, 0.98, 1.0),
    ),
    _Part(
        ("traceback.", "linecache.", "torch.autograd.anomaly_mode"),
        "anomaly_detection",
        "Turn off anomaly detection",
        "Stack traces are recorded during training, as torch.autograd.set_detect_anomaly(True) does for "
        "every operation (detect_anomaly=True in Lightning); it also checks each gradient for NaN.",
        "Remove torch.autograd.set_detect_anomaly(True) or detect_anomaly; switch it on only to find a NaN.",
        (0.85, 0.98, 1.0),
        backward=0.4,  # benchmarks/remedies.py
    ),
    _Part(
        ("multiprocessing.managers.",),
        "manager_proxies",
        "Take data out of multiprocessing.Manager",
        "Each access to a Manager's dict, list or value is a message to another process and back.",
        "Use a plain dict or list if only one process needs it; else shared memory (multiprocessing.Array, "
        "tensors with share_memory_), a Pipe, or fetch the whole object once and work on the copy.",
        (0.6, 0.95, 1.0),
        takes_users=True,
        with_waits=True,
        also=_is_proxy_call,
    ),
    _Part(
        (
            *(
                "multiprocessing.popen_fork",
                "multiprocessing.popen_spawn",
                "multiprocessing.popen_forkserver",
            ),
            *("multiprocessing.process", "multiprocessing.context", "multiprocessing.forkserver"),
            "subprocess.",
        ),
        "starting_processes",
        "Start worker processes once, not again and again",
        "Processes are started (and waited for at their end) during training, as a DataLoader with workers "
        "does for every pass over its data.",
        "DataLoader: num_workers=0 for data that fits into memory, or persistent_workers=True. Pools and env "
        "workers: create them before the loop.",
        (0.5, 0.9, 1.0),
        takes_users=True,
        with_waits=True,
        again=True,
    ),
    _Part(
        ("rich.", "pufferlib.pufferl.PuffeRL.print_dashboard"),
        "progress_bar",
        "Turn off PufferLib's dashboard",
        "PufferLib draws its dashboard after every update, up to four times a second.",
        "Replace the method of your trainer: trainer.print_dashboard = lambda *args, **kwargs: None",
        (0.85, 0.98, 1.0),
        takes_users=True,
        only_if=_uses_pufferlib,
    ),
    _Part(
        ("tqdm.", "rich.", "lightning.pytorch.callbacks.progress", "pytorch_lightning.callbacks.progress"),
        "progress_bar",
        "Update the progress bar less often",
        "A progress bar is drawn during training.",
        "Raise its interval (mininterval, refresh_rate), or turn it off.",
        (0.85, 0.98, 1.0),
        takes_users=True,
        only_if=lambda lines: not _uses_pufferlib(lines),
    ),
    _Part(
        ("h5py.", "gzip.", "zipfile.", "bz2.", "lzma.", "PIL.", "imageio."),
        "library_files",
        "Write or read files less often",
        "A library writes, reads or compresses files during training.",
        "Save rarely, without compression, or in another process; keep what was read.",
        (0.75, 0.95, 1.0),
        takes_users=True,
    ),
    _Part(
        ("pydantic.", "jsonschema.", "beartype.", "typeguard.", "jaxtyping.", "dacite."),
        "validation",
        "Validate data at the border, not at every step",
        "A library checks types or schemas of data during training.",
        "Use plain dataclasses, tuples or arrays inside the loop, or turn the checks off.",
        (0.7, 0.93, 1.0),
        takes_users=True,
    ),
    _Part(
        ("sklearn.",),
        "sklearn_for_single_rows",
        "Do not call scikit-learn for single rows",
        "scikit-learn checks its arguments anew at every call; for one row that takes far longer than the "
        "arithmetic.",
        "Compute with the fitted numbers: (x - scaler.mean_) / scaler.scale_, x @ model.coef_.T + "
        "model.intercept_, np.cos(x @ rbf.random_weights_ + rbf.random_offset_) * (2 / n_components) ** 0.5; "
        "or call it once for many rows.",
        (0.6, 0.95, 0.99),
        "rounding",
        takes_users=True,
        only_if=_checks_more_than_it_computes,
        chills=True,
    ),
    _Part(
        ("tianshou.data.",),
        "large_infos",
        "Return small, flat infos",
        "tianshou turns each info dict into a Batch, stores it in the replay buffer and copies it into every "
        "batch, entry by entry.",
        "Let the env return only the entries of `info` that are used; drop nested dicts and arrays.",
        (0.3, 0.8, 0.97),
        only_if=lambda lines: any(_returns_much_info(source) for source in lines.sources),
    ),
    _Part(
        ("gymnasium.utils.passive_env_checker", "gymnasium.wrappers.common.PassiveEnvChecker"),
        "env_checker",
        "Turn off the env checker",
        "Gymnasium checks every observation and action against the spaces.",
        "Pass disable_env_checker=True to gym.make.",
        (0.8, 0.97, 1.0),
    ),
    _Part(
        ("copy.",),
        "copies_in_a_library",
        "Give the library less to copy",
        "A library copies what it is given object by object.",
        "Hand over plain arrays and numbers, not objects, nested dicts or lists; some wrappers take "
        "copy=False.",
        (0.2, 0.8, 1.0),
    ),
    _Part(
        ("warnings.",),
        "repeated_warnings",
        "Fix what is warned about",
        "The same warning is raised again and again; even a hidden one is put together and looked up.",
        "Read the warning once and remove its cause.",
        (0.8, 0.98, 1.0),
    ),
    _Part(
        (
            *("tensorboard.", "torch.utils.tensorboard", "wandb.", "mlflow.", "logging.", "torchmetrics."),
            *("lightning.pytorch.loggers", "lightning.fabric.loggers", "pytorch_lightning.loggers"),
            "lightning.pytorch.trainer.connectors.logger_connector",
        ),
        "library_logging",
        "Log metrics less often",
        "A logger of the library writes during training.",
        "Raise its interval (log_interval, log_every_n_steps), or leave out histograms and images.",
        (0.8, 0.98, 1.0),
    ),
    _Part(
        ("json.", "pickle.", "yaml."),
        "library_serialisation",
        "Turn objects into text or bytes less often",
        "A library serialises objects during training.",
        "Save or send less often, and arrays instead of objects.",
        (0.5, 0.9, 1.0),
    ),
)


def library_parts(run: RunView) -> list[Recommendation]:
    """Parts of libraries that take time because of what they are given, or how they are set up."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    known = explained_by_idioms(lines)
    advice = []
    for part in PARTS:
        paths = _paths_of(part, lines, known)
        share = lines.share_of(paths)
        if (
            share * part.saved[1] >= LEAST_SAVED
            and part.only_if(lines)
            and (not part.again or lines.in_both_halves(paths))
        ):
            advice.append(_advice_about(part, run, lines, paths, share))
    return advice


def _paths_of(part: _Part, lines: LineSamples, known: set[int]) -> set[int]:
    """Samples that go away with a part, without those that an idiom explains."""
    paths = {
        number
        for number, path in enumerate(lines.paths)
        if (
            path.innermost.startswith(part.modules)
            or (part.takes_users and path.called.startswith(part.modules))
            or part.also(path)
        )
        and number not in known
        and (part.takes_users or not in_user_code(path))
    }
    if part.takes and lines.share_of(paths) * part.saved[1] >= LEAST_SAVED / 3:
        paths |= {
            number
            for number, path in enumerate(lines.paths)
            if number not in known and path.line and path.line.function.endswith(part.takes)
        }
    if part.with_waits and lines.share_of(paths) >= LEAST_SAVED:
        callers = {lines.paths[number].called for number in paths}
        paths |= {n for n in lines.paths_where(waits) if lines.paths[n].called in callers}
    return paths


def _advice_about(
    part: _Part, run: RunView, lines: LineSamples, paths: set[int], share: float
) -> Recommendation:
    inner = [n for n in paths if any(name.startswith(part.modules) for name in _libraries(lines.paths[n]))]
    hottest = lines.paths[max(inner or paths, key=lambda number: lines.weight_of([number]))]
    site = hottest.line.site if hottest.line else ""
    found = (m for name in _libraries(hottest) for m in part.modules if name.startswith(m))
    module = next(found, part.modules[0]).rstrip(".")
    passes = lines.paths_where(_is_backward) if part.backward else []
    more, also = [], None
    if passes:
        also = part.backward * lines.among(passes).astype(np.float64)
        of_training = percent(lines.share_of(passes))
        more = [f"It also takes about {about(part.backward)} of backward passes ({of_training} of training)."]
    made = advise(
        run,
        part.name,
        None,
        f"{part.title} (`{module}` takes {percent(share)})",
        [
            f"`{module}` took {percent(share)} of training{per_unit(run, share)}, inside "
            f"`{hottest.called}`{f', called at {short_site(site)}' if site else ''}.",
            part.why,
            f"Assumption: the change saves {about(part.saved[1])} of that time (between "
            f"{about(part.saved[0])} and {about(part.saved[2])}).",
            *more,
        ],
        part.remedy,
        lines.gain(
            paths, part.saved, also, rest_faster=rest_faster(run, COLD_CODE) if part.chills else NO_COLD
        ),
        Change(lower_first(part.title), "minutes", part.safety),
    )
    return replace(made, site=site, claim=Claim(sampled=tuple(sorted(paths))))


def _is_backward(path: SampledPath) -> bool:
    return path.called.endswith(".backward") and not path.innermost.startswith("traceback.")


def _libraries(path: SampledPath) -> tuple[str, str]:
    """The innermost library function, and the one that the user's line called."""
    return path.innermost, path.called
