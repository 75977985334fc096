"""Makespans of a job shop: a trained policy beside dispatching rules with as many rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.petri.dispatching import FEATURES, DispatchVectorEnv, Shop
from hotloop.rl.envs.petri.net import Net

Choose = Callable[[NDArray[np.float32], NDArray[np.bool_], np.random.Generator], NDArray[np.int64]]
"""Observations, action masks, random numbers -> actions."""
ROLLOUTS = 64

_DURATION, _WORK_LEFT = 2, 3  # features of a job


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: the jobs in the order in which they were given their machines."""

    makespan_s: int
    jobs: tuple[int, ...]


def play(net: Net, choose: Choose, rollouts: int, seed: int = 0) -> list[Schedule]:
    """Return the schedules of some rollouts."""
    from hotloop.rl.train.runs import end_if_stopped  # torch is slow to import

    env = DispatchVectorEnv(rollouts, net=net, autoreset_mode="Disabled")
    rng = np.random.default_rng(seed)
    observations, infos = env.reset(seed=seed)
    chosen = []
    for _ in range(int(env.shop.counts.sum())):  # as many steps in every row
        end_if_stopped()
        actions = choose(observations, infos["action_mask"], rng)
        chosen.append(actions)
        observations, _, _, _, infos = env.step(actions)
    orders = np.stack(chosen, axis=1).tolist()
    return [
        Schedule(int(makespan_s), tuple(order))
        for makespan_s, order in zip(infos["makespan"], orders, strict=True)
    ]


def by_rule(feature: int, smallest: bool) -> Choose:
    """A dispatching rule: the allowed job with the smallest or largest feature; ties are broken at random."""

    def choose(
        observations: NDArray[np.float32], masks: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        values = observations[:, feature::FEATURES] * (1.0 if smallest else -1.0)
        values = np.where(masks, values, np.inf)
        best = values == values.min(axis=1, keepdims=True)
        return np.asarray((rng.random(masks.shape) * best).argmax(axis=1))

    return choose


def at_random(
    observations: NDArray[np.float32], masks: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Any allowed job, all equally likely."""
    del observations
    return np.asarray((rng.random(masks.shape) * masks).argmax(axis=1))


RULES: dict[str, Choose] = {
    "shortest processing time": by_rule(_DURATION, smallest=True),
    "most work remaining": by_rule(_WORK_LEFT, smallest=False),
    "random": at_random,
}


def by_network(network: Any, greedy: bool) -> Choose:
    """The most likely allowed jobs of an `ActorCritic`, or a sample."""
    import torch

    def choose(
        observations: NDArray[np.float32], masks: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations)).numpy().astype(np.float64)
        if not greedy:
            logits = logits + rng.gumbel(size=logits.shape)
        return np.asarray(np.where(masks, logits, -np.inf).argmax(axis=1))

    return choose


def compare(net: Net, network: Any, seed: int = 0, rollouts: int = ROLLOUTS) -> tuple[list[str], Schedule]:
    """Return lines with the makespans of the policy and of the rules, and the policy's best schedule."""
    greedy = play(net, by_network(network, greedy=True), 1, seed)[0]
    sampled = min(
        play(net, by_network(network, greedy=False), rollouts, seed), key=lambda one: one.makespan_s
    )
    lines = [
        f"makespan of {net.name}: {greedy.makespan_s} s greedy, "
        f"{sampled.makespan_s} s best of {rollouts} samples"
    ]
    said = []
    for name, rule in RULES.items():
        found = [one.makespan_s for one in play(net, rule, rollouts, seed)]
        once = "" if rule is at_random else f"{found[0]} s, "
        said.append(f"{name} {once}{min(found)} s best of {rollouts}")
    lines.append(f"dispatching rules: {'; '.join(said)}")
    return lines, min(greedy, sampled, key=lambda one: one.makespan_s)


@dataclass(frozen=True, slots=True)
class Started:
    """An operation of a schedule."""

    start_s: int
    end_s: int
    job: int
    operation: int
    machine: int


def operations(shop: Shop, schedule: Schedule) -> list[Started]:
    """Return the operations of a schedule by their starting times."""
    jobs = len(shop.counts)
    step, free_s = [0] * jobs, [0] * jobs
    machine_s: dict[int, int] = {}
    found = []
    for job in schedule.jobs:
        machine = int(shop.machines[job, step[job]])
        start_s = max(free_s[job], machine_s.get(machine, 0))
        free_s[job] = machine_s[machine] = start_s + int(shop.durations_s[job, step[job]])
        found.append(Started(start_s, free_s[job], job, step[job], machine))
        step[job] += 1
    return sorted(found, key=lambda one: one.start_s)


def starting_order(shop: Shop, schedule: Schedule) -> list[int]:
    """Return the jobs of a schedule by the starting times of their operations, for `schedule_actions`."""
    return [one.job for one in operations(shop, schedule)]


def schedule_table(shop: Shop, schedule: Schedule) -> str:
    """A schedule as CSV; jobs, operations and machines count from 0, as in the usual text format."""
    rows = [
        f"{one.job},{one.operation},{one.machine},{one.start_s},{one.end_s}"
        for one in operations(shop, schedule)
    ]
    return "\n".join(["job,operation,machine,start_s,end_s", *rows]) + "\n"
