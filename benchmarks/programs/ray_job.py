"""A job on Ray with a fixed amount of work, for cluster_cost.py: two actors step envs, the driver learns.

Run: python ray_job.py ROUNDS ROOT_PID, with RAY_ADDRESS set; that process has started the cluster. Prints the
CPU time that the driver and all workers used while the job trained. With 0 rounds, it prints what they use
while they do nothing and, if it is recorded, what the parts of one round of hotloop over the nodes cost.
With `turns` for ROUNDS, it reads a number of rounds from each line of its input, makes them and prints the
CPU time of its own processes and the wall time, in seconds. With `alone`, it does so in one process
without Ray.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import ray
import torch

STEPS, EPOCHS, BATCH = 256, 4, 64
WARM_UP_S = 10.0
IDLE_S = 30.0


def cpu_s(root: int) -> float:
    """CPU time of the driver and of all workers of Ray below a process; Ray's daemons are left out."""
    return sum(used for _, used in cpu_by_process(root).values())


def cpu_by_process(root: int) -> dict[int, tuple[str, float]]:
    """The same for each of them: "driver" or what Ray calls it, and its CPU time."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    words = file.read().rpartition(")")[2].split()
                with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                    command = file.read()
            except OSError:
                continue
            parents[int(name)] = int(words[1])
            if (command.startswith("ray::") and "Agent" not in command) or int(name) == os.getpid():
                called = "driver" if int(name) == os.getpid() else command.partition("\0")[0]
                ticks = int(words[11]) + int(words[12])  # user and system
                found[int(name)] = called.strip(), ticks / os.sysconf("SC_CLK_TCK")
    mine = {root}
    todo = [root]
    while todo:
        above = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == above and pid not in mine]
        mine.update(below)
        todo += below
    return {pid: one for pid, one in found.items() if pid in mine}


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))


class Runner:
    def __init__(self, number: int):
        torch.set_num_threads(1)
        torch.manual_seed(number)
        self.env = gymnasium.make("CartPole-v1")
        self.observation, _ = self.env.reset(seed=number)
        self.policy = network()

    def pid(self) -> int:
        return os.getpid()

    def sample(self, weights: dict[str, Any]) -> tuple[Any, Any, Any]:
        self.policy.load_state_dict(weights)
        observations, actions, rewards = [], [], []
        for _ in range(STEPS):
            with torch.no_grad():
                logits = self.policy(torch.from_numpy(self.observation))
            action = int(torch.distributions.Categorical(logits=logits).sample())
            observations.append(self.observation)
            actions.append(action)
            self.observation, reward, terminated, truncated, _ = self.env.step(action)
            rewards.append(reward)
            if terminated or truncated:
                self.observation, _ = self.env.reset()
        return np.stack(observations), np.array(actions), np.array(rewards, dtype=np.float32)


def parts_of_a_round(root: int) -> dict[str, float]:
    """CPU time of what the driver does for all other nodes now and then, ms each."""
    from hotloop.instrument import ray_driver

    cluster = ray_driver.cluster
    assert cluster is not None
    late = time.monotonic() + 300
    with cluster._lock:  # its own thread rests
        cluster.round(late)
        links = list(cluster.nodes.values())
        parts: dict[str, tuple[Any, int]] = {
            "clock": (lambda: cluster._measure_clock(links[0], late), 20),
            "fetch": (lambda: cluster._fetch(links, late, False), 100),
            "save": (lambda: cluster._save(links[0]), 100),
            "nothing": (lambda: time.sleep(0.02), 100),
        }
        found = {}
        for name, (work, times) in parts.items():
            before = cpu_s(root)
            for _ in range(times):
                work()
            found[name] = (cpu_s(root) - before) / times * 1000
    return found


def process_cpu_s(pid: int) -> float:
    """CPU time of a process with all its threads, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid makes it on Linux


def own_thread_s() -> float:
    """CPU time of hotloop's thread in this process."""
    for thread in threading.enumerate():
        if thread.name == "hotloop cluster" and thread.native_id is not None:
            return time.clock_gettime((~thread.native_id << 3) | 6)  # as pthread_getcpuclockid makes it
    return 0.0


def own_workers(root: int, handles: list[Any]) -> list[int]:
    """The processes of this job: the driver, its actors, and ours on the other nodes if it is recorded."""
    pids = [os.getpid(), *ray.get([one.pid.remote() for one in handles])]
    if "hotloop.instrument.ray_driver" in sys.modules:
        from hotloop.instrument import ray_driver

        cluster = ray_driver.cluster
        assert cluster is not None
        deadline = time.monotonic() + 60
        while not cluster.nodes and time.monotonic() < deadline:
            time.sleep(0.1)
        pids += [pid for pid, (name, _) in cpu_by_process(root).items() if "HotloopCourier" in name]
        assert len(pids) == 4, "our actor on the other node did not start"
    return pids


def main() -> None:
    rounds, root = 0 if sys.argv[1] in ("turns", "alone") else int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1] == "alone":
        policy = network()
        adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
        here = [Runner(number) for number in range(2)]
        take_turns([os.getpid()], lambda: [one.sample(policy.state_dict()) for one in here], policy, adam)
        return
    if "hotloop.instrument.ray_driver" in sys.modules or os.environ.get("HOTLOOP_RUN"):
        from hotloop.instrument import ray_driver

        # So that clocks are compared, as between computers.
        vars(ray_driver)["clock_id"] = lambda: "another computer's"
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    make: Any = ray.remote(num_cpus=0.5)(Runner)
    places = ("near", "far")
    runners = [make.options(resources={place: 1}).remote(number) for number, place in enumerate(places)]
    policy = network()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    if sys.argv[1] == "turns":
        pids = own_workers(root, runners)
        take_turns(pids, lambda: samples(runners, policy), policy, optimizer)
        ray.shutdown()
        return
    if not rounds:
        ray.get([one.sample.remote(policy.state_dict()) for one in runners])
        time.sleep(5.0)
        began = cpu_by_process(root)
        time.sleep(IDLE_S)
        ended = cpu_by_process(root)
        each = sorted(
            (name, round((used - began[pid][1]) / IDLE_S * 1000, 1))
            for pid, (name, used) in ended.items()
            if pid in began
        )
        idle: dict[str, Any] = {"idle_ms_per_s": round(sum(rate for _, rate in each), 1), "each": each}
        recorded = bool(os.environ.get("HOTLOOP_RUN"))
        print(json.dumps(idle | (parts_of_a_round(root) if recorded else {})))
        return
    before = 0.0
    begin_s, left = time.monotonic(), -1  # rounds that are measured
    while left:
        if left < 0 and time.monotonic() - begin_s > WARM_UP_S:  # everything is imported and running
            before, left, begin_s = cpu_s(root), rounds, time.monotonic()
        left -= left > 0
        learn(samples(runners, policy), policy, optimizer)
    print(json.dumps({"train_cpu_s": cpu_s(root) - before, "train_wall_s": time.monotonic() - begin_s}))
    ray.shutdown()


def samples(runners: list[Any], policy: torch.nn.Module) -> list[Any]:
    weights = ray.put(policy.state_dict())
    found: list[Any] = ray.get([one.sample.remote(weights) for one in runners])
    return found


def learn(made: list[Any], policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The updates of one round."""
    for observations, actions, rewards in made:
        rows = torch.from_numpy(observations), torch.from_numpy(actions), torch.from_numpy(rewards)
        for _ in range(EPOCHS):
            for at in range(0, STEPS, BATCH):
                seen, done, gained = (column[at : at + BATCH] for column in rows)
                chance = torch.distributions.Categorical(logits=policy(seen)).log_prob(done)
                loss = -(chance * gained).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def take_turns(
    pids: list[int], sample: Callable[[], list[Any]], policy: torch.nn.Module, adam: torch.optim.Optimizer
) -> None:
    """Train when asked."""
    for line in sys.stdin:
        before, begin_s = [process_cpu_s(pid) for pid in pids], time.monotonic()
        thread_s = own_thread_s()
        for _ in range(int(line)):
            learn(sample(), policy, adam)
        wall_s = time.monotonic() - begin_s
        used = [process_cpu_s(pid) - then for pid, then in zip(pids, before, strict=True)]
        print(
            json.dumps({"cpu_s": used, "wall_s": wall_s, "thread_s": own_thread_s() - thread_s}), flush=True
        )


if __name__ == "__main__":
    main()
