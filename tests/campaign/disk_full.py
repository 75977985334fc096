"""Full, read-only and over-quota disks at every write that hotloop makes.

A case runs one scenario on a disk that fails at one operation, or from one operation on. Recording and
training must go on, verbs must say what is wrong, files that were there must still be whole, and nothing
unfinished may be left. Where mounting is allowed, a scenario now and then runs on a real file system that is
too small.

    python -m tests.campaign --kinds disk_full --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import hotloop
from hotloop import Profiler, analyzer
from hotloop._util.errors import HotloopError
from hotloop._util.files import UNFINISHED
from hotloop.capture.export import save_json
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import create, read
from hotloop.cli import compare, lab, report
from hotloop.instrument import process_facts
from hotloop.lab.process import Outcome
from hotloop.machine import limits
from hotloop.rl.buffers.demonstrations import DemonstrationError, DemonstrationStore, Episode
from hotloop.rl.train import ppo, runs
from hotloop.rl.workloads.petri import Petri
from hotloop.testing import Spec, make_capture
from hotloop.tuning import cache as tuning_cache
from hotloop.workflows.train import Recording, train
from tests.campaign.case import Case, seeds
from tests.campaign.corpus import printed
from tests.campaign.failing_disk import ERRORS, FailingDisk
from tests.unit.test_lab import FakeLab

REAL_EVERY = 300  # cases between two on a real file system
CAPTURE = {"env_step": Spec(200, 1000.0, category="environment"), "learn": Spec(50, 9000.0, flops=10.0)}
SCHEMA = {
    "format": "hotloop-demonstrations",
    "version": 1,
    "env": "x",
    "env_settings": {},
    "seed": 0,
    "arrays": {
        "observations": {"dtype": "float32", "shape": ["steps + 1", 2]},
        "actions": {"dtype": "float32", "shape": ["steps", 1]},
        "rewards": {"dtype": "float64", "shape": ["steps"]},
        "terminations": {"dtype": "bool", "shape": ["steps"]},
        "truncations": {"dtype": "bool", "shape": ["steps"]},
    },
}


@dataclass(frozen=True)
class Scenario:
    """Something that writes below a folder.

    `prepare` is called on a good disk, `act` on the failing one, `check` on a good one again. `act` returns
    what is wrong with how it coped; `allowed` are the exceptions it is documented to raise.
    """

    act: Callable[[Path], str | None]
    prepare: Callable[[Path], object] = lambda place: None
    check: Callable[[Path], str | None] = lambda place: None
    allowed: tuple[type[BaseException], ...] = ()


# -- scenarios -------------------------------------------------------------------------------------


def _record(place: Path, core: Any) -> str | None:
    profiler = Profiler(core_name=core).start(place / "run", timeline=True)
    profiler.sample_lines()
    for step in range(60):
        with profiler.profile("outer"), profiler.profile(f"inner {step}"):
            profiler.progress(env_steps=1)
    counted = profiler.stats()
    profiler.stop()
    if counted["outer"].calls != 60 or sum(s.calls for n, s in counted.items() if "inner" in n) != 60:
        return "calls were lost"
    return None


def _recorded(place: Path) -> str | None:
    """A capture that can be opened has exact counts, or says what is missing."""
    try:
        capture = hotloop.load(place / "run")
    except HotloopError:
        return None
    calls = sum(node.calls for node in capture.tree.children)
    return None if calls == 60 or capture.all_warnings else f"{calls} calls of 60, without a word"


def _save_run(place: Path) -> str | None:
    config = ppo.PPOConfig(checkpoint=place / "agent")
    problem = runs.save_run(
        place / "agent", config, env_steps=2, learner={"a": np.arange(200.0)}, state={"env_steps": 2}
    )
    steps = runs.load_checkpoint(place / "agent").state["env_steps"]
    return None if steps == (1 if problem else 2) else f"the checkpoint has {steps} steps, problem: {problem}"


def _train(place: Path) -> str | None:
    config = ppo.PPOConfig(
        n_envs=2, n_steps=8, total_timesteps=48, batch_size=16, net_arch=(4,), n_epochs=1, learner="torch",
        checkpoint=place / "agent", checkpoint_every_steps=16, quiet=True,
    )  # fmt: skip
    result = ppo.train(config)
    return None if result.env_steps == 48 else f"training ended after {result.env_steps} steps"


def _trained(place: Path) -> str | None:
    if (place / "agent").exists():
        runs.load_checkpoint(place / "agent")
    return None


def _workload(place: Path) -> str | None:
    """`hotloop train petri` with its capture on the failing disk."""
    config = Petri(
        n_envs=2, n_steps=8, total_timesteps=16, batch_size=16, n_epochs=1, net_arch=(4,), learner="torch",
        checkpoint=place / "agent",
    )  # fmt: skip
    done = train("petri", config, Recording(capture=place / "run"), quiet=True)
    return None if done.outcome.env_steps >= 16 else "training ended early"


def _lab(place: Path) -> str | None:
    plan = Plan((Variant("A", ("a",)), Variant("B", ("b",))), budget_s=None, looks=(2,))
    ended = FakeLab(lambda job, number: Outcome(1.0 + number % 2, 1.0, 0)).run(create(place / "s", plan, {}))
    return None if ended.ended in ("decided", "looks", "disk") else f"the lab ended with {ended.ended}"


def _lab_kept(place: Path) -> str | None:
    if not (place / "s" / "series.json").exists():
        return None
    series = read(place / "s")
    return None if not series.warnings else f"a run is damaged: {series.warnings[0]}"


def _demonstrations(place: Path) -> str | None:
    store, no = DemonstrationStore(place / "d"), np.zeros(1, dtype=np.bool_)
    store.begin(SCHEMA, resume=True)
    seen, done = np.ones((2, 2), dtype=np.float32), np.ones((1, 1), dtype=np.float32)
    for number in (1, 2):
        store.write(number, Episode(seen, done, np.ones(1), no, no))
    return None


def _demonstrations_kept(place: Path) -> str | None:
    found = DemonstrationStore(place / "d").load().numbers
    return None if found[:1] == (0,) else f"episode 0 is gone: {found}"


def _one_episode(place: Path) -> None:
    store, no = DemonstrationStore(place / "d"), np.zeros(1, dtype=np.bool_)
    store.begin(SCHEMA, resume=False)
    seen, done = np.ones((2, 2), dtype=np.float32), np.ones((1, 1), dtype=np.float32)
    store.write(0, Episode(seen, done, np.ones(1), no, no))


def _verb(run: Callable[[Path], int]) -> Callable[[Path], str | None]:
    def act(place: Path) -> str | None:
        seen = printed(lambda: run(place))
        if seen.code == 2 and not seen.err.splitlines()[-1].startswith("hotloop: "):
            return f"exit code 2 without a sentence: {seen.err[-200:]!r}"
        return None if seen.code in (0, 2) else f"exit code {seen.code}: {seen.err[-200:]!r}"

    return act


@cache
def _source() -> str:
    """A capture on a good disk, to read from."""
    folder = Path(tempfile.mkdtemp(prefix="hotloop-source-"))
    save_json(make_capture(CAPTURE, env_steps=200), folder / "run.json")
    return str(folder / "run.json")


def _old(*names: str) -> Callable[[Path], object]:
    return lambda place: [(place / name).write_text("old") for name in names]


def _old_or_whole(name: str, end: str) -> Callable[[Path], str | None]:
    def check(place: Path) -> str | None:
        text = (place / name).read_text(encoding="utf-8")
        return (
            None if text == "old" or text.rstrip().endswith(end) else f"{name} is cut short: {text[-60:]!r}"
        )

    return check


def _report(name: str) -> Scenario:
    def run(place: Path) -> int:
        return report.run(report.Arguments(_source(), output=place / name, force=True))

    end = {"html": "</html>", "svg": "</svg>"}.get(name.rpartition(".")[2], "")
    return Scenario(_verb(run), _old(name), _old_or_whole(name, end))


def _never_raises(act: Callable[[Path], object]) -> Scenario:
    return Scenario(lambda place: (act(place), None)[1])


def _note_facts(place: Path) -> None:
    recording = SimpleNamespace(folder=place / "run", is_recording=True)
    with patch.object(process_facts, "default", recording):
        process_facts.note("policy_rows", [1, 2])


def _measure_limits(place: Path) -> object:
    with patch.object(limits, "measure", lambda: dict.fromkeys(limits.NAMES, 1.0)):
        return limits.limits(file=place / "cache" / "limits.json")


def _analyze(place: Path) -> int:
    return analyzer.run(
        ["--input", _source(), "--output", str(place / "x.txt"), "--detailed", str(place / "x.json")]
    )


def _write_baseline(place: Path) -> int:
    return compare.run(compare.Arguments((_source(),), baseline=place / "b.json", update=True))


FOUND = tuning_cache.Tuned("petri", {"n_envs": 4}, safe={"threads": 1})
SCENARIOS: dict[str, Scenario] = {
    "recording": Scenario(lambda place: _record(place, "auto"), check=_recorded),
    "recording by the twin": Scenario(lambda place: _record(place, "python"), check=_recorded),
    "checkpoint": Scenario(
        _save_run,
        lambda place: runs.save_checkpoint(place / "agent", {"learner.a": np.zeros(3)}, {"env_steps": 1}, {}),
    ),
    "training": Scenario(_train, check=_trained),
    "hotloop train": Scenario(_workload, check=_trained, allowed=(HotloopError,)),
    "lab": Scenario(_lab, check=_lab_kept, allowed=(HotloopError,)),
    "demonstrations": Scenario(
        _demonstrations, _one_episode, _demonstrations_kept, allowed=(OSError, DemonstrationError)
    ),
    "report.html": _report("x.html"),
    "report.svg": _report("x.svg"),
    "export": _report("x.capture.json"),
    "baseline": Scenario(
        _verb(_write_baseline),
        _old("b.json"),
        _old_or_whole("b.json", "}"),
    ),
    "lab new": Scenario(
        _verb(lambda place: lab.run(lab.Arguments("new", _source(), output=place / "p.toml", force=True))),
        _old("p.toml"),
        _old_or_whole("p.toml", "repeats = 3"),
    ),
    "analyzer": Scenario(_verb(_analyze), _old("x.txt", "x.json"), _old_or_whole("x.json", "}")),
    "tuning cache": _never_raises(lambda place: tuning_cache.remember(FOUND, place / "cache" / "tuned.json")),
    "limits": _never_raises(_measure_limits),
    "facts of a process": _never_raises(_note_facts),
}  # fmt: skip
RARE = ("training", "hotloop train")  # they take a hundred times as long


# -- cases -----------------------------------------------------------------------------------------


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    for number in seeds(seed, seconds, count):
        yield real_case(number) if number % REAL_EVERY == REAL_EVERY - 1 else one_case(number)


def one_case(seed: int) -> Case:
    """One scenario on a disk that fails at one operation, or from then on."""
    rng = random.Random(seed)
    common = [name for name in SCENARIOS if name not in RARE]
    name = rng.choice(RARE) if rng.random() < 0.03 else rng.choice(common)
    fail_at = rng.randint(1, operations(name))
    error, forever = rng.choice(ERRORS), rng.random() < 0.5
    failure = attempt(SCENARIOS[name], FailingDisk(Path(), fail_at, error, forever))
    return Case(f"disk fails in {name}", seed, failure)


@cache
def operations(name: str) -> int:
    """How many operations a scenario makes on a good disk; it must pass there."""
    disk = FailingDisk(Path())
    failure = attempt(SCENARIOS[name], disk)
    assert failure is None and disk.operations, f"{name} on a good disk: {failure}"
    return disk.operations


def attempt(scenario: Scenario, disk: FailingDisk) -> str | None:
    """What went wrong, if anything did."""
    with tempfile.TemporaryDirectory(prefix="hotloop-disk-") as folder, quietly() as err:
        place, disk.folder = Path(folder), folder
        scenario.prepare(place)
        try:
            with disk.failing():
                failure = scenario.act(place)
        except scenario.allowed:
            failure = None
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__}: {error} at {Path(where.filename).name}:{where.lineno}"
        if failure is None:
            try:
                failure = scenario.check(place)
            except BaseException as error:
                failure = f"afterwards: {type(error).__name__}: {error}"
        left = [file.name for file in place.rglob(f".*{UNFINISHED}")]
        if failure is None and left:
            failure = f"left behind: {', '.join(left)}"
        if failure is None and "Traceback" in err.getvalue():
            failure = f"a traceback on stderr: {err.getvalue()[-200:]!r}"
    if failure is None:
        return None
    how = "from then on" if disk.forever else "once"
    return f"{os.strerror(disk.error)} at {disk.failed or 'no operation'} ({how}): {failure}"


@contextlib.contextmanager
def quietly() -> Iterator[io.StringIO]:
    """Without what is said on stderr, which is returned, and without warnings about recordings."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield err


# -- a real file system ----------------------------------------------------------------------------


@cache
def mounting_is_allowed() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


def real_case(seed: int) -> Case:
    """A scenario on a tmpfs that is too small, or becomes read-only, in a process of its own."""
    if not mounting_is_allowed():
        return one_case(seed)
    with tempfile.TemporaryDirectory(prefix="hotloop-tmpfs-") as folder:
        command = ["unshare", "-rm", sys.executable, "-m", "tests.campaign.disk_full", folder, str(seed)]
        root = Path(__file__).parent.parent.parent
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=300)
    failure = None if done.returncode == 0 else f"{done.stdout[-300:]} {done.stderr[-600:]}".strip()
    return Case("real disk is full", seed, failure)


def on_small_disk(folder: Path, seed: int) -> str | None:
    """Called inside of a mount namespace of its own."""
    rng = random.Random(seed)
    kilobytes = rng.choice((16, 64, 128, 160, 256, 512, 1024))
    options = f"size={kilobytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    name = rng.choice(sorted(SCENARIOS))
    scenario, place = SCENARIOS[name], folder / "place"
    failure = None
    try:
        place.mkdir()
        scenario.prepare(place)
    except (OSError, HotloopError):
        return None  # too small even for what was there before
    if rng.random() < 0.4:
        _fill(folder, rng)
    if rng.random() < 0.2:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        with quietly():
            failure = scenario.act(place)
    except scenario.allowed:
        pass
    subprocess.run(["mount", "-o", "remount,rw,size=64m", str(folder)], check=True)
    with quietly():
        failure = failure or scenario.check(place)
    left = [file.name for file in place.rglob(f".*{UNFINISHED}")]
    failure = failure or (f"left behind: {left}" if left else None)
    return f"{name} on {kilobytes} kB: {failure}" if failure else None


def _fill(folder: Path, rng: random.Random) -> None:
    """Leave no or little space."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with contextlib.suppress(OSError):
        os.truncate(
            folder / "filler", max((folder / "filler").stat().st_size - rng.choice((0, 4096, 65536)), 0)
        )


if __name__ == "__main__":
    failure = on_small_disk(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(failure))
    sys.exit(failure is not None)
