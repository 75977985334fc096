"""Files of every kind that hotloop reads, the ways to read them, and how to make damage look intact."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotloop import Profiler
from hotloop._util.console import guarded
from hotloop._util.read_files import json_text
from hotloop.capture import export
from hotloop.capture.folder import update_facts
from hotloop.capture.message_format import HEADER_BYTES, RECORD_BYTES
from hotloop.capture.open_capture import open_capture
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Figures, Run, append, begin_run, create, read
from hotloop.cli import compare, diff, report, show, top, whatif
from hotloop.machine import limits
from hotloop.rl.buffers.demonstrations import DemonstrationStore, Episode
from hotloop.rl.train import runs
from hotloop.testing import planted
from hotloop.testing.fakes import FakeClock
from hotloop.tuning import cache
from hotloop.workflows.baseline import write_baseline
from hotloop.workflows.lab import find_plan
from hotloop.workflows.project_settings import load_settings
from tests.cli import hotloop
from tests.old_files import written_by_0_1


@dataclass(frozen=True)
class Seen:
    """What a reading verb did."""

    code: int
    out: str
    err: str
    is_json: bool = False


Read = Callable[[Path], Seen]


@dataclass(frozen=True)
class Target:
    """Files that are damaged, and what reads them."""

    name: str
    files: dict[str, bytes]
    reads: dict[str, Read]
    open: Read | None = None  # what all of them do first, without the rest


# -- reading -------------------------------------------------------------------------------------


def printed(run: Callable[[], int], is_json: bool = False) -> Seen:
    """Run a verb of the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(run)
    return Seen(code, out.getvalue(), err.getvalue(), is_json)


def called(read: Callable[[], Any]) -> Seen:
    """Call a function of the library as if it were a verb."""

    def run() -> int:
        print(repr(read())[:2000])
        return 0

    return printed(run)


def _verbs(name: str) -> dict[str, Read]:
    """Everything that reads a capture or an export."""

    def read(module: Any, is_json: bool, make: Callable[[str], Any]) -> Read:
        return lambda place: printed(lambda: int(module.run(make(str(place / name)))), is_json)

    return {
        "show": read(show, False, lambda path: show.Arguments(path)),
        "show --by thread": read(show, False, lambda path: show.Arguments(path, by="thread", whole_run=True)),
        "show --json": read(show, True, lambda path: show.Arguments(path, json=True)),
        "report": read(report, False, lambda path: report.Arguments(path)),
        "report --json": read(report, True, lambda path: report.Arguments(path, json=True)),
        "diff": read(diff, False, lambda path: diff.Arguments(path, path)),
        "diff --json": read(diff, True, lambda path: diff.Arguments(path, path, json=True)),
        "whatif": read(whatif, False, lambda path: whatif.Arguments(path)),
        "whatif --json": read(
            whatif, True, lambda path: whatif.Arguments(path, ("backward=2x", "workers=4"), json=True)
        ),
        "top": read(top, False, lambda path: top.Arguments(path, iterations=1)),
        "compare": read(compare, True, lambda path: compare.Arguments((path, path), json=True)),
        **{
            f"report -o {ending}": partial(_report_file, name, ending)
            for ending in ("x.html", "x.txt", "x.svg", "x.capture.json", "x.trace.json", "x.speedscope.json")
        },
    }


def _report_file(name: str, ending: str, place: Path) -> Seen:
    file = place.parent / ending
    seen = printed(lambda: report.run(report.Arguments(str(place / name), output=file, force=True)))
    if seen.code:
        return seen
    return Seen(seen.code, file.read_text(encoding="utf-8"), seen.err, ending.endswith(".json"))


# -- recordings ----------------------------------------------------------------------------------


def _record(folder: Path, core: Any) -> None:
    """A recording with all that a part can hold: windows, samples, a timeline, scheduling."""
    profiler = Profiler(core_name=core).start(
        folder, timeline=True, config={"buffer_size": 1000, "lr": 0.1}, seeds={"seed": 1}
    )
    profiler.sample_lines()
    end_s = time.monotonic() + 0.4
    while time.monotonic() < end_s:
        _iterate(profiler, lambda: sum(range(20_000)))
    profiler.stop()
    _add_files(folder)


PIPELINE = """
import multiprocessing, queue, threading, time
import hotloop
def act(pipe):
    while pipe.recv():
        with hotloop.profile("env_step"):
            sum(range(4000))
        pipe.send(1)
mine, theirs = multiprocessing.get_context("fork").Pipe()
worker = multiprocessing.get_context("fork").Process(target=act, args=(theirs,))
worker.start()
batches = queue.Queue(2)
def load():
    while True:
        batches.put(bytes(100))
threading.Thread(target=load, daemon=True).start()
begin = time.monotonic()
while time.monotonic() - begin < 0.5:
    mine.send(1)
    mine.recv()
    batches.get()
    with hotloop.profile("backward"):
        sum(range(8000))
    hotloop.progress(env_steps=1, updates=1)
mine.send(0)
worker.join()
"""
RECORDS_KEPT = 200  # of a message log: damage should hit what is read


def _record_pipeline(folder: Path) -> None:
    """A run with another process, a thread, a pipe and a queue: message logs, channels and rounds."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(PIPELINE)
    done = hotloop("run", "--capture", "run", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "train.py").unlink()
    update_facts(folder / "run", {"machine": _machine(folder / "run") | {"host": "elsewhere"}})
    for log in (folder / "run" / "messages").glob("*.log"):
        data = bytearray(log.read_bytes())
        data[16:24] = RECORDS_KEPT.to_bytes(8, "little")
        log.write_bytes(bytes(data[: HEADER_BYTES + RECORDS_KEPT * RECORD_BYTES]))


def _machine(folder: Path) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads((folder / "capture.json").read_text())["machine"]
    return machine


def _record_by_twin(folder: Path) -> None:
    """The same by the Python twin, with a clock of its own, as a killed process leaves it."""
    clock = FakeClock()
    profiler = Profiler(core_name="python", clock=clock).start(folder, config={"buffer_size": 1000})
    for step in range(120):
        _iterate(profiler, partial(clock.advance, 5_000_000 + 10_000 * step), rounds=1)
        profiler.recorder.sample()
    with profiler.profile("checkpoint"):
        clock.advance(1_000_000)
        (part,) = (folder / "parts").iterdir()
        content = part.read_bytes()
    profiler.stop()
    part.write_bytes(content)
    _add_files(folder)


def _iterate(profiler: Profiler, work: Callable[[], object], rounds: int = 20) -> None:
    for step in range(rounds):
        with profiler.profile("env_step", "environment"), profiler.profile("env_render") as region:
            region.add(bytes=100.0, flops=1000.0)
            work()
        with profiler.profile("backward", "backward"):
            work()
        profiler.progress(env_steps=8, updates=1, episodes=1, episode_return=float(step), loss=0.5)


def _add_files(folder: Path) -> None:
    """What instrumented libraries leave beside the parts."""
    facts = json.loads((folder / "capture.json").read_text())
    machine = _machine(folder) | {"host": "elsewhere"}  # so that no report measures this machine
    update_facts(folder, {"machine": machine})
    (folder / "problems").mkdir()
    (folder / "problems" / "host-1.txt").write_text("torch is not recorded: another version\n")
    (folder / "libraries").mkdir()
    envs = [{"id": "x", "class": "X", "num_envs": 8}]
    libraries = {"pid": facts["pid"], "envs": envs, "policy_rows": [8, 16]}
    (folder / "libraries" / "host-1.json").write_text(json_text(libraries))


# -- the corpus ----------------------------------------------------------------------------------


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def make_corpus(scratch: Path) -> list[Target]:
    """All kinds of files, made in an empty folder."""
    return [*_captures(scratch), _series(scratch), _old_series(scratch), _plan(), *_others(scratch)]


def _captures(scratch: Path) -> Iterator[Target]:
    _record(scratch / "sampled" / "run", "auto")
    yield _capture("capture", files_below(scratch / "sampled"), "run")
    _record_by_twin(scratch / "twin" / "run")
    yield _capture("capture of a killed process", files_below(scratch / "twin"), "run")
    _record_pipeline(scratch / "pipeline")
    yield _capture("capture with messages", files_below(scratch / "pipeline"), "run")
    written_by_0_1("capture", scratch / "old")
    yield _capture("capture by 0.1", files_below(scratch / "old"), "capture")
    sampled = open_capture(str(scratch / "sampled" / "run"))
    for kind, made in (
        ("export", sampled),
        ("export of a slow run", planted.list_buffer_that_slows_down()[0]),
        ("export of a pipeline", planted.collectors_at_one_lock()[0]),
    ):
        yield _capture(kind, {"run.json": export.text(made).encode()}, "run.json")
    old = written_by_0_1("capture.export.json", scratch / "old-export")
    yield _capture("export by 0.1", {"run.json": old.read_bytes()}, "run.json")


def _capture(kind: str, files: dict[str, bytes], name: str) -> Target:
    return Target(
        kind, files, _verbs(name), lambda place: called(lambda: bool(open_capture(str(place / name))))
    )


def _series_verbs(name: str) -> dict[str, Read]:
    def run(place: Path, **how: Any) -> Seen:
        return printed(lambda: report.run(report.Arguments(str(place / name), **how)), bool(how))

    def written(ending: str, place: Path) -> Seen:
        return _report_file(name, ending, place)

    return {
        "report": run,
        "report --json": partial(run, json=True),
        "report -o x.html": partial(written, "x.html"),
        "report -o x.txt": partial(written, "x.txt"),
        "compare": lambda place: printed(
            lambda: compare.run(compare.Arguments((str(place / name), str(place / name)), json=True)), True
        ),
    }


def _series(scratch: Path) -> Target:
    plan = Plan(
        (Variant("A", ("python", "a.py", "{n}")), Variant("B", ("python", "a.py", "{n}", "--fast"))),
        sizes=(10, 20, 40),
    )
    facts = {"machine": {"cpu": "x", "cores_present": 2}, "versions": {"python": "3"}, "started_s": 1.0}
    series = create(scratch / "series" / "s", plan, facts)
    for i in range(16):
        number, _ = begin_run(series)
        scale = i >= 10
        figures = Figures(
            env_steps=100,
            episodes=5,
            mean_return=1.5 + i % 3,
            mean_length=20.0,
            s_per_env_step=0.01 + 0.001 * (i % 2),
            components_s={"model": 0.004, "environment": 0.003},
            startup_s=0.5,
            regions_s={"env_step": 0.2, "": 0.1},
            region_calls={"env_step": 100},
        )
        before = {"load_1min": 0.5, "at_s": float(i)}
        run = Run(
            *(number, "A" if scale else "AB"[i % 2], i // 2, i % 2, 0, ("python", "a.py")),
            size=(10, 20, 40)[i % 3] if scale else 10,
            scale=scale,
            started_s=float(i),
            wall_s=1.0 + 0.1 * (i % 2) + 0.01 * i,
            cpu_s=0.9,
            exit_code=0,
            before=before,
            after=before,
            figures=figures,
        )
        series = append(series, run)
    return _series_target("series", files_below(scratch / "series"), "s")


def _series_target(kind: str, files: dict[str, bytes], name: str) -> Target:
    return Target(kind, files, _series_verbs(name), lambda place: called(lambda: bool(read(place / name))))


def _old_series(scratch: Path) -> Target:
    written_by_0_1("series", scratch / "old-series")
    return _series_target("series by 0.1", files_below(scratch / "old-series"), "series")


PLAN = """\
name = "all of it"
command = "python train.py --lr 0.001 --seed {seed} {n}"
budget = "10m"
timeout = 90
tolerance = "3%"
seeds = [0, 1, 2]
looks = [5, 8]
environment = { OMP_NUM_THREADS = "1" }

[[suspects]]
name = "larger batches"
set = { batch-size = 256, fast = true }
expected = "faster"
safety = "semantic"

[[sweeps]]
setting = "n-envs"
values = [1, 2, 4.5, "x"]

[scale]
sizes = [1000, 2000]
repeats = 2
"""


def _plan() -> Target:
    return Target(
        "plan",
        {"plan.toml": PLAN.encode(), "hotloop.toml": b'categories = { "my_*" = "environment" }\n'},
        {
            "lab run": lambda place: called(lambda: find_plan(place / "plan.toml")),
            "settings": lambda place: called(lambda: load_settings(place)),
        },
    )


def _others(scratch: Path) -> Iterator[Target]:
    yield _demonstrations(scratch / "demonstrations")
    yield _checkpoint(scratch / "checkpoint")
    old = {
        name: written_by_0_1(f"{name}.safetensors", scratch / "old-checkpoints").read_bytes()
        for name in ("ppo", "dqn", "bc")
    }
    yield Target(
        "checkpoint by 0.1",
        {f"{name}.safetensors": data for name, data in old.items()},
        {name: partial(_load_checkpoint, f"{name}.safetensors") for name in old},
    )
    yield from _caches(scratch / "caches")
    yield _baseline(scratch / "baseline", scratch / "twin" / "run")


def _demonstrations(folder: Path) -> Target:
    store = DemonstrationStore(folder / "d")
    arrays = {"observations": ("float32", ["steps + 1", 8]), "actions": ("float32", ["steps", 2])}
    arrays |= {"rewards": ("float64", ["steps"])}
    arrays |= {name: ("bool", ["steps"]) for name in ("terminations", "truncations")}
    wanted = {
        "format": "hotloop-demonstrations",
        "version": 1,
        "env": "track",
        "env_settings": {"laps": 1},
        "seed": 3,
        "arrays": {name: {"dtype": kind, "shape": shape} for name, (kind, shape) in arrays.items()},
    }
    store.begin(wanted, resume=False)
    for number in range(2):
        no = np.zeros(5, dtype=np.bool_)
        seen, done = np.ones((6, 8), dtype=np.float32), np.ones((5, 2), dtype=np.float32)
        store.write(number, Episode(seen, done, np.ones(5), no, no))

    def load(place: Path) -> Seen:
        return called(lambda: len(DemonstrationStore(place / "d").load().samples()))

    def resume(place: Path) -> Seen:
        return called(lambda: DemonstrationStore(place / "d").begin(wanted, resume=True))

    return Target("demonstrations", files_below(folder), {"load": load, "resume": resume})


def _load_checkpoint(name: str, place: Path) -> Seen:
    return called(lambda: sorted(runs.load_checkpoint(place / name).state.items()))


def _checkpoint(folder: Path) -> Target:
    state = {"env_steps": 100, "updates": 5, "episodes": 3, "returns": [1.0], "lengths": [10]}
    state |= {"rng": np.random.default_rng(0).bit_generator.state, "learner": "torch", "threads": 1}
    arrays: dict[str, Any] = {"learner.weights.a": np.arange(300, dtype=np.float32).reshape(30, 10)}
    arrays |= {"learner.steps": np.array([3]), "rollout.done": np.zeros(4, dtype=np.bool_)}
    runs.save_checkpoint(folder / "agent", arrays, state, {"gamma": 0.99, "net_arch": [64, 64]})
    return Target("checkpoint", files_below(folder), {"load": partial(_load_checkpoint, "agent")})


def _caches(folder: Path) -> Iterator[Target]:
    found = cache.Tuned("petri", {"n_envs": 4}, safe={"threads": 1}, invariants=("same",), rate_per_s=100.0)
    cache.remember(found, folder / "tuned" / "tuned.json")
    yield Target(
        "tuning cache",
        files_below(folder / "tuned"),
        {
            "recall": lambda place: called(lambda: cache.recall("petri", place / "tuned.json")),
            "remember": lambda place: called(lambda: cache.remember(found, place / "tuned.json")),
            "tuned elsewhere": lambda place: called(lambda: cache.tuned_elsewhere("x", place / "tuned.json")),
        },
    )
    measured = json_text({limits.machine_key(): dict.fromkeys(limits.NAMES, 1e9)}).encode()
    yield Target(
        "limits",
        {"limits.json": measured},
        {"limits": lambda place: called(lambda: sorted(limits.read_cache(place / "limits.json").items()))},
    )


def _baseline(folder: Path, capture: Path) -> Target:
    folder.mkdir()
    write_baseline(str(capture), folder / "baseline.json")

    def read(place: Path, **how: Any) -> Seen:
        arguments = compare.Arguments((str(capture),), baseline=place / "baseline.json", **how)
        return printed(lambda: compare.run(arguments), "json" in how)

    return Target(
        "baseline",
        files_below(folder),
        {"compare": partial(read, time=True), "compare --json": partial(read, json=True, time=True)},
    )
