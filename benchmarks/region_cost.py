"""How much does one region cost, compared with its lower limit and with other profilers?

Every row is a loop around one empty region. Rounds are interleaved and short, and the shortest counts: on a
shared machine the minimum is the cost of the code, the rest is due to other programs. The time of an empty
loop is subtracted. Run: make bench, or python benchmarks/region_cost.py [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import json
import os
import shlex
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hotloop
from hotloop.machine.facts import cpu_name
from hotloop.measure import core_choice

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler announces every start

FLOOR = Path(__file__).parent / "programs" / "region_floor.c"
ROUNDS = 60
CHUNK = 2000


@dataclass
class Row:
    """One thing measured: `chunk(n)` returns nanoseconds for n regions, loop included."""

    name: str
    chunk: Callable[[int], float]
    keeps_statistics: bool = False
    calls: int = CHUNK
    per_loop: bool = True  # subtract the empty loop
    best_ns: float = field(default=float("inf"))

    def round(self) -> None:
        self.best_ns = min(self.best_ns, self.chunk(self.calls) / self.calls)


def loop_over(statement: str, **names: Any) -> Callable[[int], float]:
    """A function that times `statement` in a for loop, compiled once."""
    source = (
        "def chunk(n):\n"
        "    start = clock()\n"
        "    for _ in range(n):\n"
        f"        {statement}\n"
        "    return clock() - start\n"
    )
    scope = {"clock": time.perf_counter_ns, **names}
    exec(compile(source, "<region_cost>", "exec"), scope)
    chunk: Callable[[int], float] = scope["chunk"]
    return chunk


def build_floor() -> Any:
    """The extension that measures the lower limit, built with the compiler and flags of the core."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / f"region_floor{sysconfig.get_config_var('EXT_SUFFIX')}"
        compiler = shlex.split(sysconfig.get_config_var("CC"))
        flags = ["-O3", "-fno-plt", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
        subprocess.run([*compiler, *flags, str(FLOOR), "-o", str(built)], check=True)
        spec = importlib.util.spec_from_file_location("region_floor", built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def our_rows() -> list[Row]:
    on = hotloop.Profiler(core_name="compiled").start(memory=False)
    sampled = hotloop.Profiler(core_name="compiled").start(memory=True)
    off = hotloop.Profiler(core_name="compiled")
    twin = hotloop.Profiler(core_name="python").start(memory=False)

    def function() -> None:
        pass

    decorated = on.profile_function("decorated")(function)
    return [
        Row("hotloop, region reused", loop_over("with r: pass", r=on.profile("reused")), True),
        Row("hotloop, by name", loop_over("with p('by name'): pass", p=on.profile), True),
        Row("hotloop, memory sampled", loop_over("with r: pass", r=sampled.profile("reused")), True),
        Row("hotloop, switched off", loop_over("with r: pass", r=off.profile("reused"))),
        Row("hotloop, by name, switched off", loop_over("with p('by name'): pass", p=off.profile)),
        Row("plain call", loop_over("f()", f=function)),
        Row("hotloop, decorated call", loop_over("f()", f=decorated), True),
        Row("hotloop, Python twin", loop_over("with r: pass", r=twin.profile("twin")), True, calls=400),
    ]


def peer_rows() -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    missing: list[str] = []

    def installed(name: str) -> bool:
        found = importlib.util.find_spec(name) is not None
        if not found:
            missing.append(name)
        return found

    if installed("torchrl"):
        from torchrl._utils import timeit

        rows.append(Row("torchrl.timeit", loop_over("with t('x'): pass", t=timeit), True, calls=500))
    if installed("lightning"):
        from lightning.pytorch.profilers import SimpleProfiler

        simple = SimpleProfiler()
        rows.append(
            Row(
                "Lightning SimpleProfiler",
                loop_over("with p.profile('x'): pass", p=simple),
                True,
                calls=500,
            )
        )
    if installed("torch"):
        import torch

        record = torch.profiler.record_function
        rows.append(Row("record_function, off", loop_over("with r('x'): pass", r=record), calls=300))

        def profiled(n: int) -> float:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                return loop_over("with r('x'): pass", r=record)(n)

        rows.append(Row("record_function, on", profiled, calls=300))
    if installed("nvtx"):
        import nvtx

        rows.append(Row("nvtx.annotate", loop_over("with a('x'): pass", a=nvtx.annotate), calls=500))
    if installed("viztracer"):
        from viztracer import VizTracer

        tracer = VizTracer(verbose=0, tracer_entries=1_000_000, log_sparse=True)
        rows.append(Row("viztracer log_event", loop_over("with t.log_event('x'): pass", t=tracer), calls=500))
    if importlib.util.find_spec("ray") is not None:
        from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

        logger = MetricsLogger(root=True)
        rows.append(
            Row("RLlib MetricsLogger", loop_over("with m.log_time('x'): pass", m=logger), True, calls=200)
        )
    else:
        missing.append("ray")

    def function() -> None:
        pass

    def under_cprofile(n: int) -> float:
        profiler = cProfile.Profile()
        profiler.enable()
        spent = loop_over("f()", f=function)(n)
        profiler.disable()
        return spent

    rows.append(Row("call under cProfile", under_cprofile, True))
    return rows, missing


def measure(rows: list[Row]) -> None:
    for row in rows:  # warm-up: compile, fill caches, create nodes
        row.chunk(row.calls)
        row.best_ns = float("inf")
    for _ in range(ROUNDS):
        for row in rows:
            row.round()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    assert core_choice.compiled is not None, f"the compiled core is missing: {core_choice.why_not_compiled}"
    bare = build_floor()
    floor = [
        Row("empty loop", loop_over("pass")),
        Row("two clock reads in C", lambda n: bare.two_clock_reads(n) * n, per_loop=False),
        Row("bare `with` on a C type", loop_over("with b: pass", b=bare.Bare())),
        Row("contextlib.nullcontext", loop_over("with b: pass", b=nullcontext())),
    ]
    ours = our_rows()
    peers, missing = peer_rows()
    measure([*floor, *ours, *peers])

    empty = floor[0].best_ns
    cost = {r.name: r.best_ns - (empty if r.per_loop else 0) for r in (*floor[1:], *ours, *peers)}
    cost["hotloop, decorated call"] -= cost["plain call"]
    cost["call under cProfile"] -= cost.pop("plain call")
    limit = cost["two clock reads in C"] + cost["bare `with` on a C type"]

    print(f"{cpu_name()}; best of {ROUNDS} interleaved rounds; nanoseconds per region\n")
    print(f"{'':<32}{'ns':>8}  {'x limit':>8}")
    for name, ns in cost.items():
        print(f"{name:<32}{ns:>8.1f}  {ns / limit:>8.2f}")
    print(f"\nlimit = bare `with` + two clock reads = {limit:.1f} ns")
    statistics = [r.name for r in peers if r.keeps_statistics and r.name != "call under cProfile"]
    cheapest = min((cost[name] for name in statistics), default=None)
    reused = cost["hotloop, region reused"]
    wanted = [
        ("reused, x limit", reused / limit, 1.35),
        ("by name, x limit", cost["hotloop, by name"] / limit, 1.6),
        ("switched off, x limit", cost["hotloop, switched off"] / limit, 0.75),
        ("Python twin, us", cost["hotloop, Python twin"] / 1000, 3.0),
    ]
    for name, value, most in wanted:
        print(f"{name:<32}{value:>8.2f}  at most {most}: {'ok' if value <= most else 'MISSED'}")
    if cheapest is not None:
        ratio = cheapest / reused
        verdict = "ok" if ratio >= 4 else "MISSED"
        print(f"{'cheapest peer with statistics':<32}{ratio:>7.1f}x  at least 4x: {verdict}")
    if missing:
        print(f"not installed, so not measured: {', '.join(missing)}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cpu": cpu_name(), "limit_ns": limit, "cost_ns": cost}, indent=2)
        )


if __name__ == "__main__":
    main()
