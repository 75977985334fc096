"""Replay buffers side by side: adding vector steps of 8 envs and sampling 256 transitions at a time.

`small` are CartPole-like transitions (4 float32, one action), `frames` are stacks of 4 pictures of 84 x 84
bytes. Every library stores the same number of transitions, set up as its documentation shows. "Copying the
bytes" is numpy copying as many bytes as a sample holds, array by array: the cost of a sample without looking
anything up. Rounds are interleaved; the shortest time counts.

Run: python benchmarks/buffers.py [--rounds N] [--peers-python PYTHON] [--json FILE]
Libraries that are not installed here (tianshou needs older versions of some packages) are measured in the
interpreter given by --peers-python, in turn with the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ENVS, BATCH = 8, 256
KINDS: dict[str, dict[str, Any]] = {
    "small": {"shape": (4,), "dtype": np.float32, "capacity": 100_000, "repeat": 50, "adds": 200},
    "frames": {"shape": (4, 84, 84), "dtype": np.uint8, "capacity": 8_000, "repeat": 1, "adds": 20},
}
Action = Callable[[], Any]


class Steps:
    """Vector steps to add, generated in advance: observations, next observations, actions, rewards, flags."""

    def __init__(self, kind: str):
        rng = np.random.default_rng(0)
        shape = (ENVS, *KINDS[kind]["shape"])
        frames = rng.integers(0, 255, (2, *shape)).astype(KINDS[kind]["dtype"])
        self.observations, self.next_observations = frames
        self.actions = rng.integers(0, 2, ENVS)
        self.rewards = rng.random(ENVS).astype(np.float32)
        self.no = np.zeros(ENVS, dtype=bool)
        self.infos: list[dict[str, Any]] = [{} for _ in range(ENVS)]


def ours(kind: str, times: int = 1, **words: Any) -> tuple[Action, Action]:
    from gymnasium.spaces import Box, Discrete

    from hotloop.rl.buffers.replay import ReplayBuffer

    what, steps = KINDS[kind], Steps(kind)
    space = Box(0, 255, what["shape"], what["dtype"])
    stack = 4 if kind == "frames" else 1
    buffer = ReplayBuffer(times * what["capacity"], ENVS, space, Discrete(2), frame_stack=stack)
    batch = buffer.make_batch(BATCH, **words)
    buffer.start(steps.observations)

    def add() -> None:
        buffer.push(
            steps.actions, steps.rewards, steps.no, steps.no, steps.next_observations, steps.next_observations
        )

    for _ in range(times * what["capacity"] // ENVS):
        add()
    return add, lambda: buffer.sample(batch)


def sb3(kind: str) -> tuple[Action, Action]:
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import ReplayBuffer

    what, steps = KINDS[kind], Steps(kind)
    space = Box(0, 255, what["shape"], what["dtype"])
    buffer = ReplayBuffer(what["capacity"], space, Discrete(2), device="cpu", n_envs=ENVS)

    def add() -> None:
        buffer.add(
            steps.observations,
            steps.next_observations,
            steps.actions[:, None],
            steps.rewards,
            steps.no,
            steps.infos,
        )

    for _ in range(what["capacity"] // ENVS):
        add()
    return add, lambda: buffer.sample(BATCH)


def cpprb(kind: str, compressed: bool = False) -> tuple[Action, Action]:
    from cpprb import ReplayBuffer

    what, steps = KINDS[kind], Steps(kind)
    fields: dict[str, Any] = {
        "obs": {"shape": what["shape"], "dtype": what["dtype"]},
        "act": {"dtype": np.int64},
        "rew": {"dtype": np.float32},
        "done": {"dtype": bool},
    }
    if not compressed:
        fields["next_obs"] = fields["obs"]
    buffer = ReplayBuffer(what["capacity"], fields, **({"next_of": "obs"} if compressed else {}))

    def add() -> None:
        buffer.add(
            obs=steps.observations,
            act=steps.actions,
            rew=steps.rewards,
            next_obs=steps.next_observations,
            done=steps.no,
        )

    for _ in range(what["capacity"] // ENVS):
        add()
    return add, lambda: buffer.sample(BATCH)


def torchrl(kind: str) -> tuple[Action, Action]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    torch.set_num_threads(1)
    what, steps = KINDS[kind], Steps(kind)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(what["capacity"]), batch_size=BATCH)
    later = {
        "observation": torch.from_numpy(steps.next_observations),
        "reward": torch.from_numpy(steps.rewards),
        "done": torch.from_numpy(steps.no),
    }
    now = {"observation": torch.from_numpy(steps.observations), "action": torch.from_numpy(steps.actions)}
    step = TensorDict({**now, "next": TensorDict(later, [ENVS])}, [ENVS])

    def add() -> None:
        buffer.extend(step)

    for _ in range(what["capacity"] // ENVS):
        add()
    return add, lambda: buffer.sample()


def tianshou(kind: str) -> tuple[Action, Action]:
    from tianshou.data import Batch, VectorReplayBuffer

    what, steps = KINDS[kind], Steps(kind)
    buffer = VectorReplayBuffer(what["capacity"], ENVS)
    batch = Batch(
        obs=steps.observations,
        act=steps.actions,
        rew=steps.rewards,
        terminated=steps.no,
        truncated=steps.no,
        obs_next=steps.next_observations,
        info=Batch(),
    )

    def add() -> None:
        buffer.add(batch)

    for _ in range(what["capacity"] // ENVS):
        add()
    return add, lambda: buffer.sample(BATCH)


def copying(kind: str) -> tuple[Action, Action]:
    what = KINDS[kind]
    rng = np.random.default_rng(0)

    def arrays(count: int) -> list[np.ndarray]:
        frames = [np.ones((count, *what["shape"]), what["dtype"]) for _ in range(2)]
        return [*frames, np.ones(count, np.int64), np.ones(count, np.float32), np.ones(count, bool)]

    sources, targets = arrays(4 * BATCH), arrays(BATCH)
    small_targets = arrays(ENVS)

    def copy(target: list[np.ndarray], count: int) -> None:
        begin = int(rng.integers(0, 3 * BATCH))
        for source, to in zip(sources, target, strict=True):
            to[...] = source[begin : begin + count]

    return lambda: copy(small_targets, ENVS), lambda: copy(targets, BATCH)


PEERS: dict[str, Callable[[str], tuple[Action, Action]]] = {
    "hotloop": ours,
    "hotloop, frames not shared": lambda kind: ours(kind, shared=False),
    "hotloop, 10 x the capacity": lambda kind: ours(kind, times=10),
    "copying the bytes": copying,
    "stable_baselines3": sb3,
    "cpprb": cpprb,
    "cpprb, next_of": lambda kind: cpprb(kind, compressed=True),
    "torchrl": torchrl,
    "tianshou": tianshou,
}


class Library:
    """One library's buffer, filled, in this process."""

    def __init__(self, name: str, kind: str):
        self.actions = dict(zip(("add", "sample"), PEERS[name](kind), strict=True))
        self.repeats = {"add": KINDS[kind]["adds"], "sample": KINDS[kind]["repeat"]}

    def round_s(self, what: str) -> float:
        """Seconds per call, the mean over a short burst."""
        action, repeats = self.actions[what], self.repeats[what]
        action()
        began = time.perf_counter()
        for _ in range(repeats):
            action()
        return (time.perf_counter() - began) / repeats


class Process:
    """A separate process for each library, so that they do not share a heap."""

    def __init__(self, python: str, name: str, kind: str):
        command = [python, __file__, "--serve", name, kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if math.isnan(self.round_s("sample")):
            raise RuntimeError(f"{name} does not run in {python}")

    def round_s(self, what: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline() or "nan")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(name: str, kind: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print to it, too
    library = Library(name, kind)
    for line in sys.stdin:
        print(library.round_s(line.strip()), file=answers, flush=True)


def measure(kind: str, rounds: int, python: str | None) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Shortest seconds per call, by library and action; and which libraries are missing."""
    runners: dict[str, Process] = {}
    missing = []
    for name in PEERS:
        module = name.partition(",")[0].replace(" ", "_")
        present = module == "copying_the_bytes" or importlib.util.find_spec(module)
        where = sys.executable if present else python
        if where is None:
            missing.append(name)
            continue
        runners[name] = Process(where, name, kind)
        print(f"{kind}: {name} ready", file=sys.stderr)
    best: dict[str, dict[str, float]] = {name: {"add": 1e9, "sample": 1e9} for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            for what in best[name]:
                best[name][what] = min(best[name][what], runner.round_s(what))
    for runner in runners.values():
        runner.close()
    return best, missing


def show(kind: str, best: dict[str, dict[str, float]], missing: list[str]) -> None:
    what = KINDS[kind]
    print(f"\n{kind}: {what['capacity']:,} transitions kept; transitions/s (and x hotloop's time)")
    print(f"{'':<28}{'add 8':>12}{'':>8}{f'sample {BATCH}':>14}{'':>8}")
    own = best["hotloop"]
    for name, seconds in best.items():
        add, sample = ENVS / seconds["add"], BATCH / seconds["sample"]
        ratios = [f"({seconds[a] / own[a]:.2f})" for a in ("add", "sample")]
        print(f"{name:<28}{add:>12,.0f}{ratios[0]:>8}{sample:>14,.0f}{ratios[1]:>8}")
    if "cpprb" in best:
        least, ratio = (5, 3)[kind == "frames"], best["cpprb"]["sample"] / own["sample"]
        print(f"sampling, x cpprb: {ratio:.1f}, at least {least}: {'ok' if ratio >= least else 'MISSED'}")
    ratio = own["sample"] / best["copying the bytes"]["sample"]
    print(f"sampling, x copying the bytes: {ratio:.2f}, at most 1.5: {'ok' if ratio <= 1.5 else 'MISSED'}")
    if missing:
        print(f"not installed, so not measured: {', '.join(missing)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--peers-python", default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--serve", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    from hotloop.machine.facts import cpu_name

    print(f"{cpu_name()}; best of {arguments.rounds} interleaved rounds, one thread")
    found = {}
    for kind in arguments.kinds:
        best, missing = measure(kind, arguments.rounds, arguments.peers_python)
        show(kind, best, missing)
        found[kind] = best
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
