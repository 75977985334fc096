"""Time between regions gets the category of what was sampled there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.gap_contents import category_of_path, collecting_functions, scoring_functions
from hotloop.capture.samples import RUNNING, SAMPLE_DTYPE, FunctionSource, SampledFrame, SampledPath, Sampling
from hotloop.testing.fakes import FakeClock

MS = 1_000_000


def path(*functions: str, called: str = "") -> SampledPath:
    frames = tuple(SampledFrame("train.py", function, 1, 5) for function in functions)
    return SampledPath(frames, called=called, innermost=called)


@pytest.mark.parametrize(
    ("seen", "category"),
    [
        (path("<module>", "ReplayBuffer.sample", "ReplayBuffer._gather"), "replay"),
        (path("<module>", "compute_gae"), "advantage"),
        (path("main", "train"), "other"),
        (path("main", called="stable_baselines3.common.buffers.ReplayBuffer.add"), "replay"),
        (path("main", called="torch.utils.tensorboard.writer.SummaryWriter.add_scalar"), "logging"),
        (path("main", "ReplayBuffer.sample", called="torch._tensor.Tensor.__rsub__"), "replay"),
        (path("main", "act", called="torch.distributions.categorical.Categorical.sample"), "other"),
        (path("main", called="copy.deepcopy"), "other"),
        (path("main", "PriorityQueue.pop_item"), "other"),
        (SampledPath(()), "other"),
    ],
)
def test_names_on_the_stack_tell_what_runs(seen: SampledPath, category: str) -> None:
    assert category_of_path(seen) == category


@pytest.mark.parametrize(
    ("head", "category"),
    [
        ("def evaluate(self, state, action):", "other"),
        ("def evaluate_policy(self, obs, batch_acts):", "other"),
        ("def evaluate(policy, env, episodes=10):", "evaluation"),
        ("def evaluate(policy, factor):", "evaluation"),
    ],
)
def test_evaluating_actions_is_a_part_of_the_loss(head: str, category: str) -> None:
    name = head[4 : head.index("(")]
    seen = SampledPath((SampledFrame("train.py", "main", 1, 5), SampledFrame("train.py", name, 20, 21)))
    source = FunctionSource("train.py", name, 20, f"{head}\n    return 1\n")
    scoring = scoring_functions([source])
    assert category_of_path(seen, scoring=scoring) == category


@pytest.mark.parametrize(
    ("name", "body", "category"),
    [
        ("explore_env", "action = act(obs)\n    return env.step(action)", "other"),
        ("env_physics", "return optimizer.step(x)", "environment"),
    ],
)
def test_who_steps_an_env_is_no_env(name: str, body: str, category: str) -> None:
    path = SampledPath((SampledFrame("train.py", name, 20, 22),), "")
    source = FunctionSource("train.py", name, 20, f"def {name.rpartition('.')[2]}(self, env):\n    {body}\n")
    assert category_of_path(path, (), collecting_functions([source])) == category


def test_the_breakdown_divides_gaps_by_what_was_sampled_in_them(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(200):
        with profiler.profile("env_step"):
            clock.advance(40 * MS)
        with profiler.profile("between env_step and policy_forward", "other"):
            clock.advance(50 * MS)
        with profiler.profile("policy_forward"):
            clock.advance(10 * MS)
        profiler.progress(env_steps=1)
    capture = profiler.capture()
    process, thread = capture.processes[0], capture.threads[0]
    rows = np.zeros(1000, dtype=SAMPLE_DTYPE)
    step = thread.wall_ns // len(rows)
    rows["time_ns"], rows["weight_ns"] = thread.start_ns + step * np.arange(len(rows)), step
    rows["native_id"], rows["state"] = thread.native_id, RUNNING
    place = np.arange(len(rows)) % 10
    rows["node"] = np.where(place < 5, 0, thread.paths.index(("env_step",)))
    rows["path"] = np.where(place < 4, 0, 1)  # four of five samples in gaps
    sampled = replace(
        process,
        samples=rows,
        paths=(path("main", "Memory.replay"), path("main")),
        sampling=Sampling("native", step, len(rows), 0, 0, {}),
    )
    found = explain_without_advice(replace(capture, processes=(sampled,))).breakdown
    shares = {part.category: part.share for part in found.categories}
    assert shares["replay"] == pytest.approx(0.4, abs=0.01) and shares["other"] == pytest.approx(
        0.1, abs=0.01
    )
    assert shares["environment"] == pytest.approx(0.4, abs=0.01)
    assert sum(shares.values()) == pytest.approx(1.0)
    plain = explain_without_advice(capture).breakdown
    assert "replay" not in {part.category for part in plain.categories}
