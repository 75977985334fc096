"""Experience from 1, 2 and 3 nodes of a Ray cluster on this computer into one learner, and from processes.

    python benchmarks/collect_ray.py [--seconds 10] [--latency-ms 5]

The env waits `latency-ms` in each step and returns a frame of 84 x 84 bytes, so that it is bound by latency
and two cores can show how collection scales. Each node has 2 collectors with 4 envs. The learner only takes
rows and copies them. Where RLlib is installed, its env runners step the same envs, with as many actors and
random actions too. CPU time is that of the learner's process for each MB that it took: the cost of the
transport on its side. It holds on a busy machine; steps/s hardly.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import time
from typing import Any

import gymnasium
import numpy as np

import hotloop
from hotloop._util.extras import require_extra

RLLIB = ("tree", "lz4", "ormsgpack", "pyarrow")  # what RLlib imports
COLLECTORS, ENVS = 2, 4  # of each node
SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_register_timeout_seconds": "300",
}


class Waiting(gymnasium.Env[Any, Any]):
    """Waits in every step, as an env does that asks a simulator elsewhere."""

    latency_s = 0.005

    def __init__(self, seed: int = 0):
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._frame = np.full((84, 84), seed % 256, np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return self._frame, {}

    def step(self, action: Any) -> Any:
        time.sleep(self.latency_s / ENVS)  # the envs of a collector step one after the other
        self._steps += 1
        return self._frame, 0.0, self._steps >= 1000, False, {}


def make_waiting(latency_s: float, seed: int) -> Waiting:
    env = Waiting(seed)
    env.latency_s = latency_s
    return env


def measure(name: str, collectors: int, seconds: float, latency_s: float, on: str | None) -> None:
    def make_env(seed: int) -> Waiting:
        return make_waiting(latency_s, seed)

    with hotloop.collect(make_env, collectors=collectors, n_envs=ENVS, on=on) as collector:
        copied = np.zeros(4096, dtype=collector.dtype)
        while collector.state().rows < 200 * collectors:  # everyone has started
            collector.take(4096, 30.0, 100)
        began, used, before = time.perf_counter(), time.process_time(), collector.state()
        while time.perf_counter() - began < seconds:
            for block in collector.take(4096, 1.0, 100):
                copied[: len(block)] = block
            collector.release()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - used
        now = collector.state()
    megabytes = (now.rows - before.rows) * collector.dtype.itemsize / 1e6
    steps = (now.env_steps - before.env_steps) / took_s
    cells = [
        name,
        str(collectors),
        f"{steps:,.0f}",
        f"{megabytes / took_s:.1f}",
        f"{1e3 * cpu_s / megabytes:.2f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


class WithChannel(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The frame as [84, 84, 1]: RLlib has no network for [84, 84]."""

    def __init__(self, settings: Any):
        super().__init__(make_waiting(settings["latency_s"], 0))
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 1), np.uint8)

    def observation(self, observation: Any) -> Any:
        return observation[..., None]


def measure_rllib(name: str, runners: int, seconds: float, latency_s: float) -> None:
    """RLlib's env runners, asked for 100 steps of each env at a time, all at once, as PPO asks them."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        config = PPOConfig().environment(WithChannel, env_config={"latency_s": latency_s})
        config = config.env_runners(num_env_runners=runners, num_envs_per_env_runner=ENVS)
        group = EnvRunnerGroup(config=config, local_env_runner=False)

        def sample(runner: Any) -> Any:
            return runner.sample(num_timesteps=100 * ENVS, random_actions=True)

        group.foreach_env_runner(sample, local_env_runner=False)  # everyone has started
        steps, megabytes = 0, 0.0
        began, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            for episodes in group.foreach_env_runner(sample, local_env_runner=False):
                for episode in episodes:
                    frames = np.asarray(episode.get_observations())
                    steps += len(episode)
                    megabytes += frames.nbytes / 1e6
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - used
        group.stop()
    finally:
        ray.shutdown()
    cells = [
        name,
        str(runners),
        f"{steps / took_s:,.0f}",
        f"{megabytes / took_s:.1f}",
        f"{1e3 * cpu_s / megabytes:.2f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--latency-ms", type=float, default=5.0)
    args = parser.parse_args()
    os.environ |= SETTINGS
    cluster_utils = require_extra("ray.cluster_utils", "ray")
    size: dict[str, Any] = {"num_cpus": COLLECTORS, "object_store_memory": 200 << 20}
    print(f"load {os.getloadavg()[0]:.1f} at the start\n")
    print("| | collectors | env steps/s | MB/s | CPU ms of the learner's process per MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        os.environ["RAY_ADDRESS"] = cluster.address
        for nodes in (1, 2, 3):
            if nodes > 1:
                cluster.add_node(**size)
            count = nodes * COLLECTORS
            measure(f"Ray, {nodes} {'node' if nodes == 1 else 'nodes'}", count, args.seconds,
                    args.latency_ms / 1e3, "ray")  # fmt: skip
            measure("processes here", count, args.seconds, args.latency_ms / 1e3, None)
            if all(importlib.util.find_spec(name) for name in RLLIB):
                measure_rllib("RLlib's env runners", count, args.seconds, args.latency_ms / 1e3)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
