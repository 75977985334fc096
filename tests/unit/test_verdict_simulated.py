"""Does a verdict hold? Simulated machines, early looks included, the real `decide` after each pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import signal, stats

from hotloop.analysis.stopping_rule import RUNS, SEGMENTS, Schedule, noise_floor
from hotloop.analysis.trial import BASELINE, Part, Rounds, SequentialTrial
from hotloop.analysis.verdict import Verdict, decide, decide_blocks, judge
from hotloop.testing.noise import NOISY, QUIET, VERY_NOISY, Noise, log_times, paired_times

REPEATS = 1000
MACHINES = {"quiet": QUIET, "noisy": NOISY, "very noisy": VERY_NOISY}


@dataclass
class Tally:
    """What came out of many comparisons."""

    verdicts: list[Verdict]
    change: float  # the truth

    def share(self, *words: str) -> float:
        return sum(v.word in words for v in self.verdicts) / len(self.verdicts)

    @property
    def covered(self) -> float:
        held = [v.change is not None and v.change.low <= self.change <= v.change.high for v in self.verdicts]
        return sum(held) / len(held)


def compare_often(
    noise: Noise, change: float, repeats: int = REPEATS, schedule: Schedule = RUNS, seed: int = 1
) -> Tally:
    """Whole comparisons as the lab makes them; `decide` says nothing between looks, so only looks are run."""
    times = paired_times(np.random.default_rng(seed), repeats, schedule.most, noise, change)
    verdicts = []
    for one in times.tolist():
        for look in schedule.looks:
            found = decide(one[:look], schedule=schedule)
            if not found.go_on:
                break
        verdicts.append(found.verdict)
    return Tally(verdicts, change)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_against_a_is_rarely_called_a_difference(machine: str) -> None:
    found = compare_often(MACHINES[machine], 0.0)
    assert found.share("faster", "slower") <= 0.06
    assert found.covered >= 0.94


@pytest.mark.parametrize("machine", ["quiet", "noisy"])
def test_a_difference_of_five_percent_is_found(machine: str) -> None:
    found = compare_often(MACHINES[machine], 0.05)
    assert found.share("slower") >= 0.95
    assert found.share("faster") <= 0.005
    assert found.covered >= 0.94


@pytest.mark.parametrize("change", [-0.25, 0.3])
@pytest.mark.parametrize("machine", MACHINES)
def test_large_differences_are_found_early_and_covered(machine: str, change: float) -> None:
    found = compare_often(MACHINES[machine], change, repeats=400)
    assert found.share("faster" if change < 0 else "slower") >= 0.95
    assert found.covered >= 0.94
    most = {"quiet": 5.1, "noisy": 6, "very noisy": 18}[machine]
    assert np.mean([v.pairs for v in found.verdicts]) <= most


@pytest.mark.parametrize("machine", ["quiet", "noisy"])
def test_a_difference_at_the_tolerance_is_rarely_called_none(machine: str) -> None:
    assert compare_often(MACHINES[machine], 0.03, repeats=600).share("no_difference") <= 0.06


def test_on_a_quiet_machine_no_difference_is_decided_soon() -> None:
    found = compare_often(QUIET, 0.0, repeats=400)
    assert found.share("no_difference") >= 0.94
    assert np.mean([v.pairs for v in found.verdicts]) <= 20


@pytest.mark.long
def test_short_segments_hold_too() -> None:
    noise = Noise(0.15, neighbours=0.8, outliers=0.02)
    same = compare_often(noise, 0.0, repeats=400, schedule=SEGMENTS)
    assert same.share("faster", "slower") <= 0.06 and same.covered >= 0.94
    apart = compare_often(noise, 0.05, repeats=200, schedule=SEGMENTS)
    assert apart.share("slower") >= 0.95 and apart.covered >= 0.94


@pytest.mark.long
def test_several_variants_hold_together() -> None:
    rng = np.random.default_rng(7)
    names = [f"v{i}" for i in range(5)]
    false, found = 0, 0
    for change in (0.0, 0.1):
        times = paired_times(rng, 150, RUNS.most, NOISY, change, variants=5)
        for one in times:
            blocks = [dict(zip(["base", *names], map(float, row), strict=True)) for row in one]
            for look in RUNS.looks:
                decision = decide_blocks(blocks[:look], "base", names)
                if not decision.go_on:
                    break
            words = [v.verdict.word for v in decision.variants]
            if change:
                found += sum(word == "slower" for word in words)
            else:
                false += any(word in ("faster", "slower") for word in words)
    assert false / 150 <= 0.06
    assert found / (150 * 5) >= 0.95


def test_looking_as_often_at_five_percent_would_not_hold() -> None:
    """The simulation can see a broken method: the same looks without their stricter level."""
    careless = Schedule(RUNS.looks[1:], 0.05)
    assert compare_often(NOISY, 0.0, repeats=500, schedule=careless).share("faster", "slower") > 0.09


def test_all_a_then_all_b_is_wrong_on_a_drifting_machine() -> None:
    logs = log_times(np.random.default_rng(2), 2000, 30, Noise(0.36, neighbours=0.8))
    p = stats.ttest_ind(logs[:, :15], logs[:, 15:], axis=1).pvalue
    assert 0.35 < (p < 0.05).mean() < 0.65


@pytest.mark.parametrize("pairs", [12, 24, 40])
def test_a_difference_at_the_noise_floor_is_found_four_times_out_of_five(pairs: int) -> None:
    noise = Noise(0.05)
    change = noise_floor(noise.sd * 2**0.5, pairs)
    times = paired_times(np.random.default_rng(3), 800, pairs, noise, change).tolist()
    looks = [look for look in RUNS.looks if look <= pairs]
    found = [any(judge(one[:look]).word == "slower" for look in looks) for one in times]
    assert np.mean(found) == pytest.approx(0.80, abs=0.06)


@pytest.mark.long
@pytest.mark.parametrize("change", [0.0, 0.03, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("machine", MACHINES)
def test_many_more_comparisons_hold(machine: str, change: float) -> None:
    found = compare_often(MACHINES[machine], change, repeats=10_000, seed=11)
    assert found.covered >= 0.945
    if change == 0:
        assert found.share("faster", "slower") <= 0.055
    else:
        assert found.share("faster") <= 0.02
    if change >= 0.05 and machine != "very noisy":
        assert found.share("slower") >= 0.97


@pytest.mark.long
@pytest.mark.parametrize("change", [0.0, -0.1])
@pytest.mark.parametrize("machine", MACHINES)
def test_eight_patches_without_effect_rarely_get_a_verdict(machine: str, change: float) -> None:
    """The machine drifts from one segment to the next; `change`: of a ninth patch that does help."""
    drift, scatter, struck = {"quiet": (0.003, 0.02, 0.0), "noisy": (0.02, 0.05, 0.02)}.get(
        machine, (0.05, 0.08, 0.05)
    )
    rng = np.random.default_rng(3)
    names = [f"nothing_{number}" for number in range(8)] + ["faster"] * (change != 0)
    false, repeats, rounds = 0, 400, 220
    for _ in range(repeats):
        shocks = rng.normal(0, drift, rounds * (len(names) + 1))
        level = signal.lfilter([1.0], [1.0, -0.97], shocks)
        late = rng.exponential(1.0, level.shape) * (rng.random(level.shape) < struck)
        seconds = np.exp(level + rng.normal(0, scatter, level.shape) + late).reshape(rounds, -1)
        rows = []
        for row in seconds:
            arms = rng.permutation([BASELINE, *names]).tolist()
            times = dict(zip(arms, row.tolist(), strict=True))
            rows.append({arm: (t * (1 + change * (arm == "faster")), 1) for arm, t in times.items()})
        trial = SequentialTrial(names)
        trial.update(Rounds("cycles", "env_step", (Part(tuple(rows), 1.0),)), final=True)
        words = {row.name: row.verdict.word for row in trial.verdicts}
        false += any(words[name] in ("faster", "slower") for name in names if name != "faster")
    assert false / repeats <= 0.06
