"""Findings made by hand for the report tests: a rich run, a run with almost no measurements, a hostile one.

The rich one tells a DQN run on a grid game that pushes transitions into replay one by one. Its figures
agree with each other: own times add up to the wall time of each thread, shares to 1.
"""

from __future__ import annotations

import dataclasses
import math

from hotloop.analysis.findings import (
    AnnotatedFile,
    AnnotatedLine,
    Bottleneck,
    Breakdown,
    CategoryShare,
    Estimate,
    Findings,
    Forecast,
    Growth,
    GrowthFactor,
    HotLine,
    Oversubscription,
    Phases,
    Recommendation,
    RegionFinding,
    RegionGrowth,
    RooflineRow,
    ThreadUse,
    Waits,
)

S = 1_000_000_000
MIB = 1 << 20
LOOP_S = 200
ALL_S = 520
ENV_STEPS = 1_204_224

# category -> seconds of own time and calls in the training thread
LOOP = {
    "replay": (71.2, 1_223_040),
    "backward": (38.6, 18_816),
    "environment": (33.0, 1_208_928),
    "model": (15.4, 18_816),
    "optimizer": (12.0, 18_816),
    "policy": (9.8, 4_704),
    "transfer": (6.4, 18_816),
    "loss": (4.6, 18_816),
    "wait": (3.2, 4_704),
    "logging": (2.6, 4_704),
    "unattributed": (2.4, 0),
    "framework": (0.6, 18_817),
    "hotloop": (0.2, 2_540_161),
}
# what the other two threads add
OTHERS = {
    "wait": (262.0, 9_000),
    "environment": (28.0, 24_000),
    "unattributed": (13.9, 0),
    "evaluation": (12.0, 48),
    "logging": (4.1, 4_704),
}

# path, category, site, calls, total s, own s, memory growth
REGIONS = (
    ("queue_get", "wait", "metrics.py:31", 4_704, 188.0, 188.0, 0),
    ("ipc_wait", "wait", "evaluate.py:17", 4_296, 74.0, 74.0, 0),
    ("train_loop/replay_push", "replay", "replay.py:41", 1_204_224, 57.0, 57.0, 610),
    ("train_loop/learn/backward", "backward", "learner.py:71", 18_816, 38.6, 38.6, 2),
    ("evaluate/env_step", "environment", "grid.py:88", 24_000, 28.0, 28.0, 0),
    ("train_loop/env_step", "environment", "grid.py:88", 4_704, 33.0, 18.2, 3),
    ("train_loop/learn/learner_forward", "model", "learner.py:64", 18_816, 15.4, 15.4, 1),
    ("train_loop/env_step/env_flood_fill", "environment", "features.py:22", 1_204_224, 14.8, 14.8, 0),
    ("train_loop/learn/replay_sample", "replay", "replay.py:63", 18_816, 14.2, 14.2, 4),
    ("train_loop/learn/optimizer_step", "optimizer", "learner.py:74", 18_816, 12.0, 12.0, 0),
    ("evaluate", "evaluation", "evaluate.py:9", 48, 40.0, 12.0, 1),
    ("train_loop/policy_forward", "policy", "train.py:102", 4_704, 9.8, 9.8, 0),
    ("train_loop/learn/transfer", "transfer", "learner.py:60", 18_816, 6.4, 6.4, 0),
    ("train_loop/learn/loss", "loss", "learner.py:68", 18_816, 4.6, 4.6, 0),
    ("disk_write", "logging", "metrics.py:38", 4_704, 4.1, 4.1, 0),
    ("train_loop/lock_wait", "wait", "metrics.py:24", 4_704, 3.2, 3.2, 0),
    ("train_loop/log", "logging", "train.py:131", 4_704, 2.6, 2.6, 1),
    ("train_loop/learn", "framework", "train.py:120", 18_816, 91.6, 0.4, 0),
    ("train_loop", "framework", "train.py:96", 1, 197.4, 0.2, 0),
)


def ns(seconds: float) -> int:
    return round(seconds * S)


def breakdown(label: str, wall_s: float, parts: dict[str, tuple[float, int]]) -> Breakdown:
    ranked = sorted(parts.items(), key=lambda item: -item[1][0])
    return Breakdown(
        label=label,
        wall_ns=ns(wall_s),
        categories=tuple(CategoryShare(c, ns(s), s / wall_s, calls) for c, (s, calls) in ranked),
        unattributed_ns=ns(parts["unattributed"][0]),
        hotloop_ns=ns(parts["hotloop"][0]) if "hotloop" in parts else None,
    )


def everything() -> dict[str, tuple[float, int]]:
    total = dict(LOOP)
    for category, (seconds, calls) in OTHERS.items():
        before = total.get(category, (0.0, 0))
        total[category] = (before[0] + seconds, before[1] + calls)
    return total


def region(
    path: str, category: str, site: str, calls: int, total_s: float, own_s: float, growth_mib: int
) -> RegionFinding:
    names = tuple(path.split("/"))
    mean = total_s * S / calls
    return RegionFinding(
        path=names,
        name=names[-1],
        category=category,
        site=site,
        calls=calls,
        total_ns=ns(total_s),
        own_ns=ns(own_s),
        share=own_s / ALL_S,
        mean_ns=mean,
        min_ns=round(mean * 0.7),
        max_ns=round(mean * 6),
        sd_ns=mean * 0.3 if calls > 1 else None,
        p50_ns=mean * 0.95,
        p90_ns=mean * 1.4,
        p99_ns=mean * 2.8,
        rss_growth_bytes=growth_mib * MIB,
        rss_peak_bytes=1_900 * MIB,
        device_ns=None,
        device_peak_bytes=None,
        bytes_moved=0.0,
        flops=0.0,
        calls_per_env_step=calls / ENV_STEPS,
        out_of_order=False,
    )


def bottleneck(
    name: str,
    category: str,
    site: str,
    score: float,
    terms: tuple[float, float, float],
    own_s: float,
    calls: int,
    gain: Estimate | None,
) -> Bottleneck:
    return Bottleneck(
        name=name,
        category=category,
        site=site,
        score=score,
        score_terms=dict(zip(("own_time", "time_per_call", "cpu_memory_growth"), terms, strict=True)),
        own_ns=ns(own_s),
        share=own_s / ALL_S,
        calls=calls,
        gain_if_twice_as_fast=gain,
    )


BOTTLENECKS = (
    bottleneck(
        "replay_push",
        "replay",
        "replay.py:41",
        0.65,
        (1.0, 0.01, 1.0),
        57.0,
        ENV_STEPS,
        Estimate(1.166, 1.149, 1.184),
    ),
    bottleneck(
        "backward",
        "backward",
        "learner.py:71",
        0.38,
        (0.68, 0.29, 0.0),
        38.6,
        18_816,
        Estimate(1.107, 1.096, 1.118),
    ),
    bottleneck(
        "env_step",
        "environment",
        "grid.py:88",
        0.52,
        (0.32, 1.0, 0.0),
        18.2,
        4_704,
        Estimate(1.048, 1.043, 1.053),
    ),
    bottleneck(
        "learner_forward",
        "model",
        "learner.py:64",
        0.17,
        (0.27, 0.12, 0.0),
        15.4,
        18_816,
        Estimate(1.04, 1.036, 1.044),
    ),
    bottleneck("log", "logging", "train.py:131", 0.06, (0.05, 0.08, 0.0), 2.6, 4_704, None),
)

RUN = "HOTLOOP_CAPTURE=hotloop-runs/after python train.py --n-envs 256 --episodes 5000"

RECOMMENDATIONS = (
    Recommendation(
        name="replay_item_by_item",
        title="Push each step's transitions into replay as one batch",
        evidence=(
            "replay_push runs 256 times per step of the 256 envs, 47.3 us per call.",
            "It takes 28.5 % of the training thread's time; copying the same bytes at once would take 1.4 s.",
        ),
        advice="Write all 256 transitions with one slice assignment into preallocated arrays.",
        gain=Estimate(1.38, 1.34, 1.42),
        tier="high",
        effort="hours",
        safety="safe",
        provable_by="flag",
        how_to_change="replace the loop over envs by replay.push_batch(observations, actions, rewards, ...)",
        site="replay.py:41",
        region="replay_push",
        plan={"variants": [{"name": "batch", "flags": ["--push", "batch"]}], "pairs": 8},
        prove_command=f"make the change, then record again: {RUN}",
    ),
    Recommendation(
        name="too_many_updates",
        title="Train less often (now 4 updates per vector step)",
        evidence=("18,816 updates for 4,704 vector steps take 45.8 % of the time.",),
        advice="Try one update per vector step and watch the learning curve.",
        gain=Estimate(1.52, 1.41, 1.63),
        tier="high",
        effort="minutes",
        safety="semantic",
        provable_by="flag",
        how_to_change="--train-steps 1",
        site="train.py:120",
        region="learn",
        plan={"variants": [{"name": "once", "flags": ["--train-steps", "1"]}], "pairs": 8},
        prove_command=f"{RUN} --train-steps 1",
    ),
    Recommendation(
        name="oversubscribed_threads",
        title="Use one BLAS thread in each process",
        evidence=("2 processes x 8 BLAS threads share the 2 cores granted.",),
        advice="Small networks do not benefit from more threads; the threads wait for each other.",
        gain=None,
        tier="medium",
        effort="minutes",
        safety="safe",
        provable_by="environment",
        how_to_change="OMP_NUM_THREADS=1",
        site="",
        region="learner_forward",
        plan={"variants": [{"name": "one", "environment": {"OMP_NUM_THREADS": "1"}}], "pairs": 8},
        prove_command=f"OMP_NUM_THREADS=1 {RUN}",
    ),
    Recommendation(
        name="too_many_updates",
        title="Make fewer updates per env step",
        evidence=("18,816 updates for 1,204,224 env steps.",),
        advice="This is less learning, not faster learning: compare returns after equal wall time.",
        gain=Estimate(1.21, 1.20, 1.23),
        tier="option",
        effort="minutes",
        safety="semantic",
        provable_by="flag",
        how_to_change="--train-freq 64",
        site="",
        region="learner_forward",
        plan={},
        prove_command="",
    ),
    Recommendation(
        name="logging_too_often",
        title="Logging every step costs 1.3 %",
        evidence=("log takes 2.6 s of 200 s.",),
        advice="Leave it.",
        gain=Estimate(1.012, 1.011, 1.013),
        tier="not_worth_optimising",
        effort="minutes",
        safety="safe",
        provable_by="hand",
        how_to_change="log every 100th step in train.py",
        site="train.py:131",
        region="log",
        plan={},
        prove_command="",
    ),
)

GROWTH = Growth(
    per="episode",
    early_ns=21.4e6,
    late_ns=64.2e6,
    excess=3.0,
    factors=(
        GrowthFactor("steps_per_episode", 1.875, False),
        GrowthFactor("calls_per_step", 1.0, False),
        GrowthFactor("cost_per_call", 1.6, True),
    ),
    regions=(
        RegionGrowth("replay_push", Estimate(0.41, 0.36, 0.47), 1e-9, True, 24.1e3, 71.8e3),
        RegionGrowth("env_flood_fill", Estimate(0.12, 0.08, 0.16), 0.002, False, 11.0e3, 13.4e3),
        RegionGrowth("backward", Estimate(0.0, -0.02, 0.02), 0.71, False, 2.05e6, 2.05e6),
    ),
    summary="Late in the run, an episode took 3.00x the time of an early one: episodes got longer (1.88x), "
    "which is learning; a defect: calls of replay_push got slower.",
)

UTILISATION = (
    ThreadUse(
        "train.py (pid 4211)", "MainThread", ns(200), ns(194.2), ns(3.2), ns(0.4), ns(192.5), None, None
    ),
    ThreadUse("train.py (pid 4211)", "writer", ns(200), ns(4.1), ns(188), ns(7.7), ns(4.3), None, None),
    ThreadUse("evaluate (pid 4230)", "MainThread", ns(120), ns(40), ns(74), None, None, "ipc_wait", ns(41)),
)

ROOFLINE = (
    RooflineRow("replay_push", "copy_bandwidth", 57.0e9, 1.4e9, 40.7),
    RooflineRow("backward", "matrix_product", 38.6e9, 29.7e9, 1.3),
)

WAITS = "The other threads wait for your training thread, 81.9 % of the time; it waits 1.6 % of the time."
OVERSUBSCRIBED = "2 processes x 8 compute threads on 2 cores: 8.0 threads per core."


def time_series(points: int = 24) -> dict[str, tuple[float, ...]]:
    """Throughput falls while replay takes more and more of the time."""
    where = [i / (points - 1) for i in range(points)]
    replay = [0.18 + 0.30 * x**0.7 for x in where]
    rest = {c: s for c, (s, _) in LOOP.items() if c != "replay"}
    total = sum(rest.values())
    shares = {
        f"share:{c}": tuple((1 - replay[i]) * s / total for i in range(points)) for c, s in rest.items()
    }
    return {
        "time_s": tuple(LOOP_S * (i + 1) / points for i in range(points)),
        "env_steps_per_s": tuple(8_400 - 4_100 * x**0.7 + 160 * math.sin(9 * x) for x in where),
        "rss_bytes": tuple((620 + 1_280 * x) * MIB for x in where),
        "share:replay": tuple(replay),
        **shares,
    }


def rich() -> Findings:
    """A run with something to say in every section of the report."""
    return Findings(
        headline="replay takes 35.6 % of your training thread's time, mostly to push transitions one by one; "
        "pushing whole batches would speed up training 1.38x [1.34, 1.42].",
        command=("python", "train.py", "--n-envs", "256", "--episodes", "5000"),
        wall_ns=ns(200.6),
        env_steps=ENV_STEPS,
        updates=18_816,
        episodes=5_000,
        env_steps_per_s=6_003.1,
        updates_per_s=93.8,
        mean_return=12.42,
        basis="the breakdown shows shares of the wall time of train.py (pid 4211) MainThread, which drives "
        "training; regions and bottlenecks show shares of the time of all 3 threads added up",
        breakdown=breakdown("train.py (pid 4211) MainThread", LOOP_S, LOOP),
        all_threads=breakdown("all 3 threads", ALL_S, everything()),
        bottlenecks=BOTTLENECKS,
        recommendations=RECOMMENDATIONS,
        growth=GROWTH,
        forecast=Forecast(2_000_000, ENV_STEPS, Estimate(188.0, 171.0, 214.0)),
        utilisation=UTILISATION,
        roofline=ROOFLINE,
        regions=tuple(region(*row) for row in REGIONS),
        time_series=time_series(),
        machine={
            "host": "bench-1",
            "system": "Linux-6.1.0-x86_64",
            "cpu": "AMD EPYC 7B13",
            "cores_granted": 2.0,
            "cores_present": 8,
            "memory_bytes": 8 * 1024 * MIB,
            "load_1min": 2.31,
            "threads_env": {},
        },
        versions={"python": "3.11.7", "numpy": "2.1.3", "torch": "2.5.1"},
        not_measured=(
            "GPU time and memory: no accelerator was in use.",
            "Idle time of evaluate (pid 4230): its CPU time was not recorded.",
        ),
        warnings=("evaluate (pid 4230) died before closing its recording; its figures end there.",),
        waits=Waits("train.py (pid 4211) MainThread", 0.016, 0.819, WAITS),
        oversubscription=Oversubscription(2, 8, "cores present", 2.0, 8.0, 0.97, OVERSUBSCRIBED),
        phases=Phases(ns(3.2), ns(1.4), ns(195.9), 0, ns(0.1), 62, "env_steps"),
        hot_lines=HOT_LINES,
        source=SOURCE,
        working_folder="/home/ana/snake",
        hotloop_version="0.1.0",
        started_at_ns=1_772_360_100 * S,
    )


HOT_LINES = (
    HotLine(
        site="/home/ana/snake/replay.py:41",
        function="Replay.push",
        text="self.states[self.at] = torch.as_tensor(state)",
        called="",
        callers=("/home/ana/snake/train.py:88",),
        share=0.312,
        per="env_step",
        ns_per_unit=52_000.0,
        gain_if_twice_as_fast=Estimate(1.185, 1.17, 1.20),
    ),
    HotLine(
        site="/home/ana/snake/train.py:91",
        function="<module>",
        text="loss.backward()",
        called="torch._tensor.Tensor.backward",
        callers=(),
        share=0.171,
        per="env_step",
        ns_per_unit=28_500.0,
        gain_if_twice_as_fast=Estimate(1.093, 1.08, 1.10),
    ),
)


SOURCE = (
    AnnotatedFile(
        file="/home/ana/snake/replay.py",
        share=0.331,
        changed=False,
        per="env_step",
        lines=(
            AnnotatedLine(39, "    def push(self, state, action):", 0.0, None),
            AnnotatedLine(40, "        self.full |= self.at + 1 == self.size", 0.019, 3_200.0),
            AnnotatedLine(41, "        self.states[self.at] = torch.as_tensor(state)", 0.312, 52_000.0),
        ),
    ),
    AnnotatedFile(
        file="/home/ana/snake/train.py",
        share=0.21,
        changed=True,
        per="env_step",
        lines=(
            AnnotatedLine(88, "    replay.push(state, action)", 0.0, None),
            AnnotatedLine(91, "    loss.backward()", 0.171, 28_500.0),
            *(
                AnnotatedLine(n, f"    step_{n}()", (112 - n) / 1000, 1_000.0 * (112 - n))
                for n in range(100, 112)
            ),
        ),
    ),
)


def bare() -> Findings:
    """A run that measured next to nothing: everything that may be missing is missing."""
    nothing = {"unattributed": (1.5, 0)}
    return dataclasses.replace(
        rich(),
        headline="Nothing was recorded inside a region, so nothing can be said about the loop.",
        command=(),
        wall_ns=ns(1.5),
        env_steps=0,
        updates=0,
        episodes=0,
        env_steps_per_s=None,
        updates_per_s=None,
        mean_return=None,
        breakdown=breakdown("MainThread", 1.5, nothing),
        all_threads=breakdown("1 thread", 1.5, nothing),
        bottlenecks=(),
        recommendations=(),
        growth=None,
        forecast=None,
        utilisation=(),
        roofline=(),
        regions=(),
        time_series={},
        machine={},
        versions={},
        waits=None,
        oversubscription=None,
        basis="shares of the wall time of MainThread",
        not_measured=("Progress: the script never called hotloop.progress.",),
        warnings=(),
        phases=None,
        hot_lines=(),
        source=(),
        working_folder="",
        hotloop_version="",
        started_at_ns=None,
    )


HOSTILE_NAMES = (
    "<script>document.title='run'</script>",
    "</script><img src=x onerror=\"document.title='run'\">",
    "line\nbreak\ttab\x1b[31mred\x1b[0m\x07bell\x00nul",
    "観測を描く" * 12,
    "x" * 250,
    "<b>bold</b> & &lt;i&gt; %{label} ${1+1} {{7*7}}",
    "right\u202eto left\u2028line",
    "\ud800 lone surrogate",
    "",
)


def hostile() -> Findings:
    """The rich run with names, sites and sentences that try to break out of every format."""
    good = rich()
    script, image, control = HOSTILE_NAMES[:3]
    regions = tuple(
        dataclasses.replace(good.regions[2], name=name, path=(HOSTILE_NAMES[0], name), site=f"{image}.py:1")
        for name in HOSTILE_NAMES[1:]
    )
    top = dataclasses.replace(good.regions[2], name=script, path=(script,), total_ns=ns(500), own_ns=ns(44))
    return dataclasses.replace(
        good,
        headline=f"Most time is spent in {script} {control}.",
        command=("python", image, "--name", control),
        regions=(top, *regions),
        bottlenecks=tuple(
            dataclasses.replace(good.bottlenecks[0], name=name, site=image) for name in HOSTILE_NAMES
        ),
        recommendations=tuple(
            dataclasses.replace(
                r,
                title=f"Fix {script}",
                evidence=(image, control),
                advice=image,
                how_to_change=script,
                site=image,
            )
            for r in good.recommendations
        ),
        growth=dataclasses.replace(
            GROWTH,
            summary=control,
            regions=tuple(dataclasses.replace(r, name=script) for r in GROWTH.regions),
        ),
        utilisation=tuple(
            dataclasses.replace(u, process=image, thread=control, stuck_in=script, stuck_for_ns=ns(3))
            for u in UTILISATION
        ),
        roofline=tuple(dataclasses.replace(r, name=script) for r in ROOFLINE),
        machine={"cpu": image, "host": control},
        versions={"python": script},
        not_measured=(script, control),
        warnings=(image,),
        hot_lines=tuple(
            dataclasses.replace(
                line, site=f"{image}:1", text=control, called=script, callers=(script, control)
            )
            for line in HOT_LINES
        ),
        source=tuple(
            dataclasses.replace(
                one, file=image, lines=tuple(dataclasses.replace(line, text=script) for line in one.lines)
            )
            for one in SOURCE[:1]
        ),
    )
