"""PPO of RLlib on the nodes of a Ray cluster, an ordinary script: `hotloop run examples/rllib_on_ray.py`.

`make demo-cluster` runs it where RLlib is installed (`pip install -c constraints.txt 'hotloop[rllib]'`).
"""

from __future__ import annotations

import argparse

import ray
from ray.rllib.algorithms.ppo import PPOConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=5)
    given = parser.parse_args()
    ray.init(log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4, num_cpus_per_env_runner=0.5)
        .learners(num_learners=1, num_cpus_per_learner=0.5)
        .training(train_batch_size_per_learner=1000, minibatch_size=100, num_epochs=4)
        .resources(num_cpus_for_main_process=0)
    )
    algorithm = config.build_algo()
    for _ in range(given.iterations):
        result = algorithm.train()
    sampled = result["env_runners"]
    print(f"RLlib counts {sampled['num_env_steps_sampled_lifetime']:.0f} env steps")
    algorithm.stop()


if __name__ == "__main__":
    main()
