"""How much faster `hotloop boost` makes Stable-Baselines3, and how far its numbers are from the library's.

Speed: whole `learn()` calls, a fresh model each, in turn: the library on one thread, boosted on one thread
with audits, the library on two threads, and boosted on two where a second thread is used. Environments, seeds
and numbers of updates are the same. Differences:
weights after 1, 10 and 100 updates against the library's, next to what moving one weight of the library's own
model by one unit in the last place does. Audits: the largest differences that frequent audits find. Learning:
curves of several seeds with and without boost, and a picture of them. Scripts: training loops in a single
file of plain torch (programs/single_file_*.py, or any script that takes --total-timesteps), a fresh process
each, in turn: as they are, boosted, and compiled with torch.compile; then their differences. SBX: the same
settings in Stable-Baselines3's JAX sibling, in turn with the library and the boosted one, on one thread.
Parts: what each part of boost around the learner gives, by leaving it out. Single steps: the fastest tenth
of env steps, for a machine that others use.

    python benchmarks/boost.py [--only NAME ...] [--rounds 5] [--what speed|differences|audits|learning]
    python benchmarks/boost.py --what scripts|script-differences|script [--compiled] [--script FILE ...]
    python benchmarks/boost.py --what sbx --sbx-python .venv-sbx/bin/python   (make bench-sbx)
    python benchmarks/boost.py --what parts|single-steps
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotloop.analysis.ranking import compare_returns
from hotloop.boost import active, audit
from hotloop.boost.install import install, remove

warnings.filterwarnings("ignore")


@dataclass(frozen=True)
class Case:
    """One setting."""

    algorithm: str
    env: str
    steps: int
    """Env steps of one timed `learn`."""
    words: dict[str, Any] = field(default_factory=dict)
    goal: float = 0.0
    first_update: int = 0
    """Env steps before the first update, and for each update, when differences are measured."""
    steps_per_update: int = 0
    difference_words: dict[str, Any] = field(default_factory=dict)
    episodes: int = 100
    """Whose mean return is a point of a learning curve."""
    judged: float = 0.2
    """Part of the training, from its end, whose mean return is compared."""
    two_goal: float = 0.0
    """To reach on two threads, against the faster of the library on one and on two; 0 uses one thread."""


ONE_UPDATE = {"n_steps": 64, "batch_size": 64, "n_epochs": 1}
SOON: dict[str, Any] = {"learning_starts": 100}
LEARNING_DQN: dict[str, Any] = {
    "learning_rate": 2.3e-3, "batch_size": 64, "learning_starts": 1000, "target_update_interval": 10,
    "train_freq": 64, "gradient_steps": 32, "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
}  # fmt: skip
LEARNING_TD3: dict[str, Any] = SOON | {"policy_kwargs": {"net_arch": [64, 64]}, "batch_size": 128}
SMALL_SAC: dict[str, Any] = {"policy_kwargs": {"net_arch": [64, 64]}, "learning_starts": 100}
CASES = {
    "PPO defaults": Case("PPO", "CartPole-v1", 8192, {}, 8.0, 0, 64, ONE_UPDATE),
    "PPO batch 256, 4 epochs": Case("PPO", "CartPole-v1", 8192, {"batch_size": 256, "n_epochs": 4}, 4.0),
    "PPO Pendulum (Box)": Case("PPO", "Pendulum-v1", 8192, {}, 0.0, 0, 64, ONE_UPDATE),
    "MaskablePPO": Case("MaskablePPO", "InvalidActionEnvDiscrete", 8192, {}, 0.0, 0, 64, ONE_UPDATE),
    "A2C defaults": Case("A2C", "CartPole-v1", 5000, {}, 2.5, 0, 5, {}),
    "DQN defaults": Case("DQN", "CartPole-v1", 8000, {}, 3.0, 100, 4, SOON),
    "DQN train_freq=1": Case(
        "DQN", "CartPole-v1", 3000, {"train_freq": 1, "learning_starts": 100}, 4.0, 100, 1,
        {"train_freq": 1, "learning_starts": 100},
    ),
    "SAC 64-64": Case("SAC", "Pendulum-v1", 600, SMALL_SAC, 4.5, 100, 1, SMALL_SAC),
    "SAC 256-256": Case("SAC", "Pendulum-v1", 1200, SOON, 2.3, 100, 1, SOON, two_goal=3.0),
    "TD3 400-300": Case("TD3", "Pendulum-v1", 1000, SOON, 1.6, 100, 1, SOON, two_goal=2.2),
    "DDPG 400-300": Case("DDPG", "Pendulum-v1", 1000, SOON, 0.0, 100, 1, SOON),
    "PPO HalfCheetah": Case("PPO", "HalfCheetah-v5", 8192, {}),  # MuJoCo: the extra `bench`
    "SAC HalfCheetah": Case("SAC", "HalfCheetah-v5", 600, SOON, two_goal=3.0),
    "PPO Track": Case("PPO", "hotloop.rl.envs:hotloop/Track-v0", 8192, {}),  # an environment of ours
    "SAC 64-64 Track": Case("SAC", "hotloop.rl.envs:hotloop/Track-v0", 1000, SMALL_SAC),
    # For `--what learning`: settings that learn within a few thousand env steps.
    "DQN learning": Case("DQN", "CartPole-v1", 16_000, LEARNING_DQN, episodes=20, judged=1.0),
    "SAC learning": Case(
        "SAC", "Pendulum-v1", 3_000, SMALL_SAC | {"learning_rate": 2e-3}, episodes=5, judged=1.0
    ),
    "A2C learning": Case("A2C", "CartPole-v1", 20_000, {"n_steps": 16}, episodes=50, judged=1.0),
    "TD3 learning": Case("TD3", "Pendulum-v1", 4_000, LEARNING_TD3, episodes=5, judged=1.0),
    "PPO batch 256, 4 epochs learning": Case(
        "PPO", "CartPole-v1", 40_960, {"batch_size": 256, "n_epochs": 4}, episodes=100
    ),
    "PPO Pendulum (Box) learning": Case("PPO", "Pendulum-v1", 40_960, {}, episodes=20),
    "DQN train_freq=1 learning": Case(
        "DQN", "CartPole-v1", 10_000, SOON | {"train_freq": 1}, episodes=20, judged=1.0
    ),
    "SAC 256-256 learning": Case("SAC", "Pendulum-v1", 2_500, SOON, episodes=5, judged=1.0),
    "TD3 400-300 learning": Case("TD3", "Pendulum-v1", 2_500, SOON, episodes=5, judged=1.0),
}  # fmt: skip
MOST_SEEDS = 30
MUJOCO = ("HalfCheetah-v5",)


def make(case: Case, words: dict[str, Any], seed: int = 0) -> Any:
    import stable_baselines3

    if case.algorithm == "MaskablePPO":
        import sb3_contrib
        from sb3_contrib.common.envs import InvalidActionEnvDiscrete

        env = InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10)
        return sb3_contrib.MaskablePPO("MlpPolicy", env, seed=seed, device="cpu", **words)
    return getattr(stable_baselines3, case.algorithm)("MlpPolicy", case.env, seed=seed, device="cpu", **words)


def timed(case: Case, is_boosted: bool, threads: int, steps: int) -> tuple[float, float, int, str | None]:
    """Seconds, CPU seconds, updates, and why it was not boosted."""
    torch.set_num_threads(threads)
    if is_boosted:
        install()
    try:
        model = make(case, case.words)
        started, cpu = time.perf_counter(), time.process_time()
        model.learn(steps)
        took = time.perf_counter() - started, time.process_time() - cpu
        found = active.boosted(model)
        reason = None if not is_boosted or found is None else found.record.reason
        return *took, model._n_updates, reason
    finally:
        if is_boosted:
            remove()


def speed(names: list[str], rounds: int, has_two: bool) -> None:
    print("| | library | boosted | x | x CPU time | library, 2 threads | x | to reach", end=" | ")
    print("boosted, 2 threads | x |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        case = CASES[name]
        for is_boosted in (False, True):  # compilation and first imports are not measured
            timed(case, is_boosted, 1, case.steps // 4)
        kinds = [("library", False, 1), ("boosted", True, 1)]
        kinds += [("two", False, 2)] if has_two else []
        kinds += [("boosted two", True, 2)] if has_two and case.two_goal else []
        results: dict[str, list[tuple[float, float]]] = {kind: [] for kind, _, _ in kinds}
        updates = set()
        for _ in range(rounds):
            for kind, is_boosted, threads in kinds:
                wall, cpu, made, reason = timed(case, is_boosted, threads, case.steps)
                if reason is not None:
                    print(f"{name} is not boosted: {reason}", file=sys.stderr)
                results[kind].append((wall, cpu))
                updates.add(made)
        assert len(updates) == 1, f"{name} made different numbers of updates: {updates}"
        seconds = {kind: statistics.median(wall for wall, _ in found) for kind, found in results.items()}
        pairs = list(zip(results["library"], results["boosted"], strict=True))
        ratio = statistics.median(one[0] / other[0] for one, other in pairs)
        cpu_ratio = statistics.median(one[1] / other[1] for one, other in pairs)
        rates = {kind: f"{case.steps / found:,.0f}/s" for kind, found in seconds.items()}
        goal = f"{case.goal:g}" if case.goal else ""
        cells = [f"{name}, {case.env}", rates["library"], rates["boosted"], f"**{ratio:.2f}**"]
        cells += [f"{cpu_ratio:.1f}", "", "", goal, "", ""]
        if has_two:
            two = zip(results["two"], results["boosted"], strict=True)
            cells[5:7] = [rates["two"], f"{statistics.median(one[0] / ours[0] for one, ours in two):.1f}"]
        if "boosted two" in results:
            best = zip(results["library"], results["two"], results["boosted two"], strict=True)
            gain = statistics.median(min(one[0], other[0]) / ours[0] for one, other, ours in best)
            cells[-2:] = [rates["boosted two"], f"**{gain:.1f}** (to reach {case.two_goal:g})"]
        print(f"| {' | '.join(cells)} |", flush=True)


def env_steps_s(case: Case, is_boosted: bool, threads: int) -> list[float]:
    """Wall times of single env steps with their gradient steps."""
    from stable_baselines3.common.callbacks import BaseCallback

    seen: list[float] = []

    class Note(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps > case.first_update + 50:
                seen.append(time.perf_counter())
            return True

    torch.set_num_threads(threads)
    if is_boosted:
        install()
    try:
        make(case, case.words).learn(case.steps // 2, callback=Note())
    finally:
        if is_boosted:
            remove()
    return [float(one) for one in np.diff(seen)]


def single_steps(names: list[str], rounds: int) -> None:
    """The fastest tenth of all env steps, which others did not disturb: for machines that are never quiet."""
    kinds = [("library", False, 1), ("library, 2 threads", False, 2), ("boosted", True, 1)]
    kinds.append(("boosted, 2 threads", True, 2))
    print(f"| milliseconds an env step | {' | '.join(kind for kind, _, _ in kinds)} | x | x, 2 threads |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        case = CASES[name]
        env_steps_s(case, True, 2)  # compiles
        found: dict[str, list[float]] = {kind: [] for kind, _, _ in kinds}
        for _ in range(rounds):
            for kind, is_boosted, threads in kinds:
                found[kind] += env_steps_s(case, is_boosted, threads)
        least = [1e3 * float(np.quantile(found[kind], 0.1)) for kind, _, _ in kinds]
        gains = [least[0] / least[2], min(least[:2]) / least[3]]
        cells = [
            f"{name}, {case.env}",
            *(f"{one:.2f}" for one in least),
            *(f"**{one:.2f}**" for one in gains),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


# ---- SBX

SBX_CASES = (
    "PPO defaults", "PPO batch 256, 4 epochs", "PPO Pendulum (Box)", "DQN defaults", "DQN train_freq=1",
    "SAC 64-64", "SAC 256-256", "TD3 400-300",
)  # fmt: skip
SBX_SETTINGS = (
    "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "buffer_size", "learning_starts", "tau",
    "gradient_steps", "target_update_interval", "exploration_fraction", "policy_delay",
)  # fmt: skip


def sbx_settings(case: Case) -> dict[str, Any]:
    """The settings of Stable-Baselines3's own model, for SBX, whose defaults are others."""
    model = make(case, case.words)
    found = {name: getattr(model, name) for name in SBX_SETTINGS if hasattr(model, name)}
    if hasattr(model, "train_freq"):
        found["train_freq"] = model.train_freq.frequency
    layers = case.words.get("policy_kwargs", {}).get("net_arch")
    default = {"SAC": [256, 256], "TD3": [400, 300]}
    return found | {"policy_kwargs": {"net_arch": layers or default.get(case.algorithm, [64, 64])}}


def sbx(names: list[str], rounds: int, python: str) -> None:
    print("| | library | boosted | SBX | boosted against SBX | x CPU time |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        case = CASES[name]
        words = [python, str(PROGRAMS / "learn_sbx.py"), case.algorithm, case.env, str(case.steps)]
        words.append(json.dumps(sbx_settings(case)))
        timed(case, True, 1, case.steps // 4)  # compiles
        results: dict[str, list[tuple[float, float]]] = {"library": [], "boosted": [], "SBX": []}
        for _ in range(rounds):
            for kind in ("library", "boosted"):
                wall, cpu, updates, reason = timed(case, kind == "boosted", 1, case.steps)
                assert reason is None, reason
                results[kind].append((wall, cpu))
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            if found["updates"] != updates:
                print(f"{name}: SBX made {found['updates']} updates, not {updates}", file=sys.stderr)
            results["SBX"].append((found["seconds"], found["cpu_s"]))
        walls = [statistics.median(wall for wall, _ in found) for found in results.values()]
        rates = [f"{case.steps / wall:,.0f}/s" for wall in walls]
        pairs = list(zip(results["SBX"], results["boosted"], strict=True))
        gains = [statistics.median(one[at] / other[at] for one, other in pairs) for at in (0, 1)]
        cells = [f"{name}, {case.env}", *rates, f"**{gains[0]:.1f}**", f"{gains[1]:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


# ---- parts of boost, one by one


def without_acting(learner: Any) -> None:
    """The library's own policy acts."""
    learner.collect_rollouts = None
    if hasattr(learner, "acting"):
        learner.acting.rows = lambda _: None


def without_sampling(learner: Any) -> None:
    """Samples of the replay buffer go through torch tensors, as the library makes them."""
    if getattr(learner, "samples", None) is not None:  # off-policy
        learner.samples._is_plain = lambda _: False


def without_training_mode(learner: Any) -> None:
    """`set_training_mode` walks through all modules."""
    policy = learner._policy
    patched = type(policy).set_training_mode
    set_mode = getattr(patched, "__wrapped__", patched)
    learner.set_training_mode = lambda mode: set_mode(policy, mode)


def parts(names: list[str], rounds: int) -> None:
    """CPU time for each env step with every part, and what leaving one out adds."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import dummy_vec_env

    class Change(BaseCallback):
        """Leaves a part out from env step 300 on, and takes the time from step 400 to the end."""

        def __init__(self, change: Callable[[Any], None] | None):
            super().__init__()
            self.change, self.started, self.at = change, 0.0, 0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.change is not None and self.num_timesteps >= PART_AFTER:
                self.change(active.of(self.model))
                self.change = None
            if not self.at and self.num_timesteps >= PART_AFTER + 100:
                self.started, self.at = time.process_time(), self.num_timesteps

    def copies(_: Any) -> None:
        dummy_vec_env.deepcopy = dummy_vec_env.deepcopy.__wrapped__  # type: ignore[attr-defined]

    kinds: dict[str, Callable[[Any], None] | None] = {
        "all": None, "acting": without_acting, "sampling": without_sampling,
        "training mode": without_training_mode, "copies of infos": copies,
    }  # fmt: skip
    print("| | CPU time an env step | without acting | sampling | training mode | copies of infos |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        case = CASES[name]
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, change in kinds.items():
                torch.set_num_threads(1)
                install()
                try:
                    model, note = make(case, case.words), Change(change)
                    model.learn(case.steps, callback=note)
                    ended = time.process_time()
                finally:
                    remove()
                found[kind].append((ended - note.started) / (model.num_timesteps - note.at) * 1e6)
        whole = statistics.median(found["all"])
        cells = [f"{name}, {case.env}", f"{whole:.0f} us"]
        for kind in list(kinds)[1:]:
            more = statistics.median(b / a for a, b in zip(found["all"], found[kind], strict=True))
            cells.append(f"{100 * (more - 1):+.0f} %")
        print(f"| {' | '.join(cells)} |", flush=True)


PART_AFTER = 300  # env steps, before a part is left out
PARTS_CASES = ("PPO defaults", "A2C defaults", "DQN defaults", "DQN train_freq=1", "SAC 64-64")


def weights(model: Any) -> Any:
    return torch.cat([value.flatten() for value in model.policy.state_dict().values()]).double().numpy()


def one_ulp(model: Any) -> None:
    """Move the largest weight of the first layer by one unit in the last place."""
    with torch.no_grad():
        first = next(one for one in model.policy.parameters() if one.ndim == 2).view(-1)
        largest = first.abs().argmax()
        first[largest] = torch.nextafter(first[largest], torch.tensor(float("inf")))


def learned(case: Case, updates: int, is_boosted: bool, change: Callable[[Any], None] | None = None) -> Any:
    if is_boosted:
        install()
    try:
        model = make(case, case.difference_words)
        if change is not None:
            change(model)
        model.learn(case.first_update + case.steps_per_update * updates)
        return weights(model)
    finally:
        if is_boosted:
            remove()


def differences(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| | after | boosted: mean | max | one weight moved by one ulp: mean | max |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        case = CASES[name]
        if not case.steps_per_update:
            continue
        for updates in (1, 10, 100):
            plain = learned(case, updates, is_boosted=False)
            found = [
                np.abs(other - plain)
                for other in (learned(case, updates, True), learned(case, updates, False, one_ulp))
            ]
            cells = " | ".join(f"{value:.1e}" for one in found for value in (one.mean(), one.max()))
            print(f"| {name.split(',')[0]}, {case.env} | {updates} | {cells} |", flush=True)


def curve(case: Case, seed: int, is_boosted: bool, steps: int) -> list[float]:
    """Mean return of the last episodes, after rollouts, at most 50 times."""
    from stable_baselines3.common.callbacks import BaseCallback

    found: list[float] = []

    class Note(BaseCallback):
        next_at = 0.0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            if returns and self.num_timesteps >= self.next_at:
                found.append(float(np.mean(returns[-case.episodes :])))
                self.next_at = self.num_timesteps + steps / 50

    if is_boosted:
        install()
    try:
        make(case, case.words, seed).learn(steps, callback=Note())
    finally:
        if is_boosted:
            remove()
    return found


def end_of(curve: list[float], part: float) -> float:
    """Mean of the last `part` of a curve."""
    return float(np.mean(curve[-max(int(len(curve) * part), 1) :]))


def learning(names: list[str], seeds: int, steps: int | None, picture: str | None, kept: Path | None) -> None:
    """Learning curves with and without boost, and whether returns are worse in either direction.

    Curves are written to the file `kept` after each run, and those in it are not made again. While the
    returns are undecided at a margin of 10 %, up to 30 seeds are run.
    """
    torch.set_num_threads(1)
    rows = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for name in names:
        case, curves = CASES[name], rows.setdefault(name, [])
        while True:
            for seed in range(len(curves), seeds):
                curves.append(
                    [curve(case, seed, is_boosted, steps or case.steps) for is_boosted in (False, True)]
                )
                print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
                if kept is not None:
                    kept.write_text(json.dumps(rows))
            last = [(end_of(one, case.judged), end_of(other, case.judged)) for one, other in curves]
            verdicts = [
                compare_returns([(pair[::order][0], pair[::order][1]) for pair in last], tolerance=0.1)
                for order in (1, -1)
            ]
            if all(verdict.word != "undecided" for verdict in verdicts) or len(curves) >= MOST_SEEDS:
                break
            seeds = min(len(curves) + 5, MOST_SEEDS)
        difference = verdicts[0].difference
        assert difference is not None, "at least 5 seeds"
        size = verdicts[0].tolerance / 0.1
        shown = [100 * value / size for value in (difference.value, difference.low, difference.high)]
        means = np.mean(last, axis=0)
        words = ", ".join(verdict.word.replace("_", " ") for verdict in verdicts)
        print(
            f"| {name.removesuffix(' learning')}, {case.env} | {len(curves)} | {means[0]:.1f} | "
            f"{means[1]:.1f} | {shown[0]:+.1f} % [{shown[1]:+.1f}, {shown[2]:+.1f}] | {words} |",
            flush=True,
        )
    if picture is not None:
        draw({name: rows[name] for name in names}, steps, picture)


def draw(rows: dict[str, list[list[list[float]]]], steps: int | None, picture: str) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(rows), figsize=(5.0 * len(rows), 3.4), squeeze=False)
    for place, (name, pairs) in zip(axes[0], rows.items(), strict=True):
        case = CASES[name]
        for kind, (colour, label) in enumerate((("#888888", "Stable-Baselines3"), ("#d9480f", "boosted"))):
            length = min(len(pair[kind]) for pair in pairs)  # the first episodes end at different times
            curves = np.array([pair[kind][-length:] for pair in pairs])
            x = np.linspace(0.0, steps or case.steps, length + 1)[1:]
            for one in curves:
                place.plot(x, one, color=colour, alpha=0.25, linewidth=0.7)
            place.plot(
                x, curves.mean(axis=0), color=colour, linewidth=2.0, label=f"{label}, mean of {len(curves)}"
            )
        place.set(
            title=f"{name.removesuffix(' learning')}, {case.env}",
            xlabel="env steps",
            ylabel=f"mean return, last {case.episodes} episodes",
        )
        place.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def audits(names: list[str]) -> None:
    """The largest differences that frequent audits find; none of them ends the boost."""
    torch.set_num_threads(1)
    every, share, record = audit.EVERY, audit.SHARE, audit.Audits.record
    print("| | audits | weights, learning rates | moments | one tensor | logged | would fail |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        found: list[audit.Difference] = []

        def note(self: audit.Audits, difference: audit.Difference, started_s: float) -> None:
            found.append(difference)  # noqa: B023
            self.note(True, started_s)

        audit.EVERY, audit.SHARE = 5, float("inf")
        audit.Audits.record = note  # type: ignore[method-assign]
        install()
        try:
            make(CASES[name], CASES[name].words).learn(2 * CASES[name].steps)
        finally:
            remove()
            audit.EVERY, audit.SHARE = every, share
            audit.Audits.record = record  # type: ignore[method-assign]
        fields = ("mean_step", "moments", "tensor", "logged")
        cells = [f"{max(getattr(one, field) for one in found):.1e}" for field in fields]
        failed = sum(not one.passes for one in found)
        print(f"| {name}, {CASES[name].env} | {len(found)} | {' | '.join(cells)} | {failed} |", flush=True)


# ---- training loops in a single file

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Script:
    """A program that prints its speed without warm-up as JSON."""

    file: str
    arguments: tuple[str, ...]
    goal: float = 0.0


SCRIPTS = {
    "PPO": Script("single_file_ppo.py", ("--total-timesteps", "41984"), 1.5),
    "DQN": Script("single_file_dqn.py", ("--total-timesteps", "20000")),
    "DQN, train_freq 1": Script("single_file_dqn.py", ("--total-timesteps", "6000", "--train-freq", "1")),
}


def run_script(words: list[str], is_boosted: bool) -> str:
    """Run a script on one thread in a fresh process; returns what it printed."""
    start = ["-m", "hotloop", "boost"] if is_boosted else []
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *start, *words], env=environment, capture_output=True, text=True, check=False
    )
    if (
        done.returncode
        or "continues unboosted" in done.stderr
        or (is_boosted and "kernels" not in done.stderr)
    ):
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    return done.stdout


def measured(script: Script, kind: str, *more: str) -> dict[str, Any]:
    """What the program found: as it is, boosted or compiled by torch."""
    words = [str(PROGRAMS / script.file), *script.arguments, *more]
    words += ["--compiled"] if kind == "torch.compile" else []
    found: dict[str, Any] = json.loads(run_script(words, kind == "boosted").splitlines()[-1])
    return found


def scripts(rounds: int, has_compiled: bool) -> None:
    kinds = ["plain", "boosted", *(["torch.compile"] if has_compiled else [])]
    print("| | plain | boosted | x | x CPU time | torch.compile | x | to reach |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, script in SCRIPTS.items():
        measured(script, "boosted")  # compiles
        results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                results[kind].append(measured(script, kind))
        plain, boosted = results["plain"], results["boosted"]
        assert {one["updates"] for one in plain} == {one["updates"] for one in boosted}
        rates = {
            kind: statistics.median(one["env_steps"] / one["seconds"] for one in found)
            for kind, found in results.items()
        }
        ratio, cpu_ratio = (
            statistics.median(one[key] / ours[key] for one, ours in zip(plain, boosted, strict=True))
            for key in ("seconds", "cpu_s")
        )
        cells = [
            f"{rates['plain']:,.0f}/s",
            f"{rates['boosted']:,.0f}/s",
            f"**{ratio:.2f}**",
            f"{cpu_ratio:.2f}",
        ]
        if has_compiled:
            pairs = zip(plain, results["torch.compile"], strict=True)
            gain = statistics.median(one["seconds"] / other["seconds"] for one, other in pairs)
            cells += [f"{rates['torch.compile']:,.0f}/s", f"{gain:.2f}"]
        else:
            cells += ["", ""]
        print(f"| {name} | {' | '.join(cells)} | {script.goal or ''} |", flush=True)


def script_differences() -> None:
    """Weights after 1, 10 and 100 updates against torch's own, next to those of a run with one ulp moved."""
    print("| | after | boosted: mean | max | one weight moved by one ulp: mean | max | random numbers |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for name, script in SCRIPTS.items():
        for updates in (1, 10, 100):
            with tempfile.TemporaryDirectory() as folder:
                found: list[Any] = []
                random: list[Any] = []
                for kind, more in (("plain", ()), ("boosted", ()), ("plain", ("--one-ulp",))):
                    file = str(Path(folder) / f"{len(found)}.npy")
                    result = measured(script, kind, "--updates", str(updates), "--weights", file, *more)
                    random.append(result["random"])
                    found.append(np.load(file).astype(np.float64))
            apart = [np.abs(one - found[0]) for one in found[1:]]
            cells = " | ".join(f"{value:.1e}" for one in apart for value in (one.mean(), one.max()))
            same = "equal" if random[0] == random[1] else "differ"
            print(f"| {name} | {updates} | {cells} | {same} |", flush=True)


def any_script(words: list[str], steps: tuple[int, int], rounds: int) -> None:
    """The speed of an unmodified script between two numbers of env steps, so that start-up does not count.

    In CPU time of the script: start-up is long, and its wall time varies more than what is to be measured.
    """
    ratios, rates = [], []
    for _ in range(rounds):
        took: dict[tuple[bool, int], float] = {}
        for count in steps:
            for is_boosted in (False, True):
                started = resource.getrusage(resource.RUSAGE_CHILDREN)
                run_script([*words, "--total-timesteps", str(count)], is_boosted)
                ended = resource.getrusage(resource.RUSAGE_CHILDREN)
                took[is_boosted, count] = (
                    ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime
                )
        spent = {kind: took[kind, steps[1]] - took[kind, steps[0]] for kind in (False, True)}
        rates.append([(steps[1] - steps[0]) / spent[kind] for kind in (False, True)])
        ratios.append(spent[False] / spent[True])
    plain, boosted = (statistics.median(column) for column in zip(*rates, strict=True))
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{plain:,.0f} env steps/CPU s, boosted {boosted:,.0f}: {statistics.median(ratios):.2f}x ({each})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    kinds = (
        "speed", "differences", "audits", "learning", "scripts", "script-differences", "script", "sbx",
        "parts", "single-steps",
    )  # fmt: skip
    parser.add_argument("--sbx-python", help="a Python that has sbx-rl (make bench-sbx)")
    parser.add_argument("--what", choices=kinds, default="speed")
    parser.add_argument("--script", nargs="+", help="of --what script: a file, its arguments")
    parser.add_argument("--between", nargs=2, type=int, default=(5_000, 25_000), help="env steps of --script")
    parser.add_argument("--compiled", action="store_true", help="scripts: torch.compile, too")
    parser.add_argument("--seeds", type=int, default=10, help="of learning")
    parser.add_argument("--steps", type=int, help="of learning")
    parser.add_argument("--curves", type=Path, help="a file to keep learning curves in")
    parser.add_argument("-o", "--picture", help="of learning")
    parser.add_argument("--one-thread", action="store_true", help="leave out the runs on two threads")
    arguments = parser.parse_args()
    is_learning = arguments.what == "learning"
    has_mujoco = importlib.util.find_spec("mujoco") is not None
    names = arguments.only or [
        name
        for name, case in CASES.items()
        if name.endswith("learning") == is_learning and (has_mujoco or case.env not in MUJOCO)
    ]
    if arguments.what == "sbx":
        sbx(arguments.only or list(SBX_CASES), arguments.rounds, arguments.sbx_python)
    elif arguments.what == "single-steps":
        single_steps(arguments.only or ["SAC 256-256", "TD3 400-300"], arguments.rounds)
    elif arguments.what == "parts":
        parts(arguments.only or list(PARTS_CASES), arguments.rounds)
    elif arguments.what == "speed":
        speed(names, arguments.rounds, not arguments.one_thread)
    elif arguments.what == "differences":
        differences(names)
    elif arguments.what == "scripts":
        scripts(arguments.rounds, arguments.compiled)
    elif arguments.what == "script-differences":
        script_differences()
    elif arguments.what == "script":
        any_script(arguments.script, tuple(arguments.between), arguments.rounds)
    elif arguments.what == "audits":
        audits(names)
    else:
        learning(names, arguments.seeds, arguments.steps, arguments.picture, arguments.curves)


if __name__ == "__main__":
    main()
