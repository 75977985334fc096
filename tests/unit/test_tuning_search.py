"""The model and the search on made-up machines whose best settings are known."""

from __future__ import annotations

import random

import pytest

from hotloop._util.memory_estimate import MemoryEstimate
from hotloop.testing.fakes import FakeClock
from hotloop.tuning.memory_plan import MemoryPlan, fit_peak_memory, largest_that_fits
from hotloop.tuning.search import Search, SearchResult, SearchTerms
from hotloop.tuning.space import Knob, Settings, Space, doubling
from hotloop.tuning.time_model import Probe, fit, split_phases

CORES = 4.0
ENVS = Knob("envs", doubling(1, 256), 8, "envs", "semantic", "envs x steps stays")
THREADS = Knob("threads", (1, 2, 4), 4, "threads")
BATCH = Knob("batch", doubling(32, 512), 64, "batch", "semantic")
WORKERS = Knob("workers", tuple(range(9)), 1, "workers")


def made_up(space: Space, settings: Settings, noise: float = 0.0, rng: random.Random | None = None) -> Probe:
    """A machine that follows the formulae: e = 40, i0 = 60, a = 200, b = 4, c = 500, d = 3 us."""
    n = space.amount(settings, "envs") or 1
    t = space.amount(settings, "threads") or 1
    b = space.amount(settings, "batch") or 64
    w = space.amount(settings, "workers")
    share = n / min(max(w, 1), CORES) if w is not None else n
    env = 40e-6 * share + 60e-6 + 30e-6 * (w or 0)
    infer = 200e-6 + 4e-6 * n * (0.5 + 0.5 / t) + 50e-6 * (t - 1)
    updates = 4 / b
    train = updates * (500e-6 + 3e-6 * b * (0.3 + 0.7 / t) + 20e-6 * (t - 1))
    phases = {"env": env / n, "infer": infer / n, "train": train, "rest": 2e-6}
    factor = 1.0 if rng is None else rng.lognormvariate(0.0, noise)
    phases = {name: seconds * factor for name, seconds in phases.items()}
    return Probe(settings, sum(phases.values()), phases, updates, 100 + 10 * n + 50 * (w or 0) + b, 2.0)


def test_the_model_finds_the_formulae_it_was_made_with() -> None:
    space = Space((ENVS, THREADS, BATCH))
    everything = list(space.all_settings())
    chosen = random.Random(1).sample(everything, 12)
    model = fit(space, [made_up(space, settings) for settings in chosen], CORES)
    assert model is not None and model.error_fraction < 1e-6
    for settings in everything:
        assert model.predict_s(settings) == pytest.approx(made_up(space, settings).s_per_unit, rel=0.02)
    infer = next(phase for phase in model.phases if phase.name == "infer")
    found = dict(zip(infer.terms, infer.weights, strict=True))
    assert found["1"] == pytest.approx(200e-6, rel=1e-3) and found["threads-1"] == pytest.approx(
        50e-6, rel=1e-3
    )
    ceiling, half = model.inference or (0.0, 0.0)
    assert ceiling == pytest.approx(1 / 4e-6, rel=1e-3) and half == pytest.approx(50, rel=1e-3)


def test_worker_processes_have_their_own_term() -> None:
    space = Space((ENVS, WORKERS))
    chosen = random.Random(2).sample(list(space.all_settings()), 12)
    model = fit(space, [made_up(space, settings) for settings in chosen], CORES)
    assert model is not None
    env = next(phase for phase in model.phases if phase.name == "env")
    assert dict(zip(env.terms, env.weights, strict=True)) == pytest.approx(
        {"n/min(w,C)": 40e-6, "w": 30e-6, "1": 60e-6}, rel=1e-3
    )


def test_without_phases_the_whole_time_is_fitted() -> None:
    space = Space((ENVS,))
    probes = [Probe((("envs", n),), (40e-6 * n + 260e-6) / n) for n in (1, 8, 64, 256)]
    model = fit(space, probes, CORES)
    assert model is not None and model.inference is None
    assert model.predict_s((("envs", 32),)) == pytest.approx((40e-6 * 32 + 260e-6) / 32, rel=1e-6)


def test_a_phase_that_one_probe_did_not_record_does_not_spoil_the_model() -> None:
    # A short probe of a kernel that learns in large blocks may record no `train` at all.
    space = Space((ENVS,))
    phases = [{"train": 60e-6, "rest": 1e-6} if n != 64 else {"rest": 1e-6} for n in (1, 8, 16, 32, 64, 128)]
    probes = [
        Probe((("envs", n),), 100e-6, found, updates_per_unit=0.25)
        for n, found in zip((1, 8, 16, 32, 64, 128), phases, strict=True)
    ]
    model = fit(space, probes, CORES)
    assert model is not None and model.error_fraction < 0.3


def test_weights_are_never_negative_and_few_probes_give_no_model() -> None:
    space = Space((ENVS,))
    falling = [Probe((("envs", n),), 1e-3 / n**2) for n in (1, 2, 4, 8)]  # faster than any sum of terms
    model = fit(space, falling, CORES)
    assert model is not None and all(w >= 0 for phase in model.phases for w in phase.weights)
    assert fit(space, falling[:2], CORES) is None


def test_categories_become_phases_and_nothing_is_lost() -> None:
    parts = {
        "environment": 1.0,
        "rendering": 2.0,
        "policy": 3.0,
        "backward": 4.0,
        "replay": 1.0,
        "logging": 5.0,
    }
    assert split_phases(parts | {"logging": 5.0}) == {"env": 3.0, "infer": 3.0, "train": 5.0, "rest": 5.0}


# ---- the search


def search(
    space: Space, noise: float, seed: int, budget_s: float = 60.0, most_bytes: float = float("inf")
) -> SearchResult:
    clock, rng = FakeClock(), random.Random(seed)

    def probe(settings: Settings) -> Probe:
        clock.advance(2_000_000_000)
        return made_up(space, settings, noise, rng)

    return Search(
        space,
        probe,
        SearchTerms(budget_s, CORES, seed=seed),
        fits=lambda settings, probes: (made_up(space, settings).peak_bytes or 0) <= most_bytes,
        clock=lambda: clock() / 1e9,
    ).run()


def true_s(space: Space, settings: Settings) -> float:
    return made_up(space, settings).s_per_unit or 0.0


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.95), (0.03, 0.95), (0.10, 0.93)])
def test_the_best_of_135_settings_is_found_in_60_s_of_probes(noise: float, least: float) -> None:
    space = Space((ENVS, THREADS, BATCH))
    best_s = min(true_s(space, settings) for settings in space.all_settings())
    reached = []
    for seed in range(10):
        found = search(space, noise, seed)
        assert found.spent_s <= 60.0 and len(found.probes) <= 30
        reached.append(best_s / true_s(space, found.best))
        assert true_s(space, found.best_safe) <= 1.01 * true_s(space, space.current)
    assert sorted(reached)[1] >= least  # all but one of ten


def test_only_choices_are_all_tried_while_there_is_time() -> None:
    ways = Space((Knob("way", ("a", "b", "c", "d", "e"), "a"),))

    def probe(settings: Settings) -> Probe:
        clock.advance(2_000_000_000)
        return Probe(settings, {"e": 1.0}.get(str(dict(settings)["way"]), 2.0), spent_s=2.0)

    clock = FakeClock()
    found = Search(ways, probe, SearchTerms(20.0, CORES), clock=lambda: clock() / 1e9).run()
    assert {dict(p.settings)["way"] for p in found.probes} == set("abcde")
    assert dict(found.best)["way"] == "e"


def test_settings_that_do_not_fit_are_never_probed() -> None:
    space = Space((ENVS, THREADS))
    found = search(space, 0.0, 0, most_bytes=100 + 10 * 32 + 64)
    assert all((space.amount(p.settings, "envs") or 0) <= 32 for p in found.probes)
    assert space.amount(found.best, "envs") == 32 and found.too_large == 9 and found.legal == 18


def test_the_best_safe_settings_leave_semantic_ones_alone() -> None:
    space = Space((ENVS, THREADS))
    found = search(space, 0.0, 3)
    assert dict(found.best_safe)["envs"] == 8 and dict(found.best)["envs"] == 256
    assert space.is_safe(found.best_safe) and dict(found.best_safe)["threads"] in (1, 2)


def test_choices_are_tried_one_by_one_and_the_best_is_kept() -> None:
    space = Space((Knob("learner", ("fused", "torch"), "auto"), Knob("loop", ("kernel",), "python"), ENVS))
    speed = {"auto": 1.0, "fused": 0.5, "torch": 3.0, "kernel": 0.5, "python": 1.0}
    clock = FakeClock()

    def probe(settings: Settings) -> Probe:
        clock.advance(2_000_000_000)
        values = dict(settings)
        factor = speed[str(values["learner"])] * speed[str(values["loop"])]
        return Probe(settings, (10 / int(values["envs"]) + 1) * 1e-5 * factor, spent_s=2.0)

    found = Search(space, probe, SearchTerms(60.0, CORES), clock=lambda: clock() / 1e9).run()
    assert dict(found.best) == {"learner": "fused", "loop": "kernel", "envs": 256}
    assert dict(found.best_safe) == {"learner": "fused", "loop": "kernel", "envs": 8}


def test_failed_probes_are_left_out_and_the_search_continues() -> None:
    space, clock = Space((ENVS,)), FakeClock()

    def probe(settings: Settings) -> Probe:
        clock.advance(10**9)
        if int(dict(settings)["envs"]) > 64:
            return Probe(settings, None, spent_s=1.0, failure="killed by SIGKILL")
        return made_up(space, settings)

    found = Search(space, probe, SearchTerms(60.0, CORES), clock=lambda: clock() / 1e9).run()
    assert dict(found.best) == {"envs": 64} and any(p.failure for p in found.probes)


def test_an_interrupt_keeps_what_was_measured() -> None:
    space, made = Space((ENVS,)), 0

    def probe(settings: Settings) -> Probe:
        nonlocal made
        made += 1
        if made == 4:
            raise KeyboardInterrupt
        return made_up(space, settings)

    found = Search(space, probe, SearchTerms(60.0, CORES)).run()
    assert found.interrupted and len(found.probes) == 3
    assert found.best == min((p.settings for p in found.probes), key=lambda s: true_s(space, s))


def test_a_budget_for_one_probe_keeps_the_current_settings() -> None:
    found = search(Space((ENVS,)), 0.0, 0, budget_s=1.0)
    assert len(found.probes) == 1 and found.best == found.best_safe == found.space.current


# ---- memory


def test_memory_of_probes_is_fitted() -> None:
    space = Space((ENVS, WORKERS, BATCH))
    chosen = random.Random(4).sample(list(space.all_settings()), 8)
    expected = fit_peak_memory(space, [made_up(space, settings) for settings in chosen])
    assert expected is not None
    for settings in space.all_settings():
        assert expected(settings) == pytest.approx(made_up(space, settings).peak_bytes, rel=1e-3)
    assert fit_peak_memory(space, [made_up(space, chosen[0])]) is None


def test_a_plan_that_does_not_fit_names_the_setting_that_would() -> None:
    def predicted(setting: str, value: int) -> int:
        return 250 + 10 * value if setting == "capacity" else 10_200 + value

    plan = MemoryPlan(
        (
            MemoryEstimate("Python", 200),
            MemoryEstimate("envs", 50, "envs", 4),
            MemoryEstimate("replay", 10_000, "capacity", 1000),
        ),
        4000,
    )
    assert plan.total_bytes == 10_250 and not plan.fits()
    said = plan.refusal(predicted)
    assert "10.0 KiB" in said and "replay" in said and "--capacity 350 would fit" in said
    assert predicted("capacity", 350) <= 0.95 * 4000 < predicted("capacity", 360)
    assert MemoryPlan(plan.parts, 20_000).refusal(predicted) == ""
    assert MemoryPlan(plan.parts, None).refusal(predicted) == ""
    hopeless = MemoryPlan((MemoryEstimate("Python", 5000), MemoryEstimate("replay", 10, "capacity", 1)), 4000)
    assert "reducing capacity alone is not enough" in hopeless.refusal(lambda setting, value: 5000 + value)
    bare = MemoryPlan((MemoryEstimate("Python", 5000),), 4000)
    assert "free some memory" in bare.refusal(predicted)


@pytest.mark.parametrize(("limit", "expected"), [(0, None), (7, 7), (123, 120), (98_765, 98_000)])
def test_the_largest_that_fits_is_a_round_number(limit: int, expected: int | None) -> None:
    assert largest_that_fits(10**6, lambda value: value <= limit) == expected
