"""PPO baseline for CartPole with Stable-Baselines3."""

import argparse
import json
import time

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rollouts", type=int, default=25)
parser.add_argument("--n-envs", type=int, default=32)
parser.add_argument("--seed", type=int, default=0)


def main(args):
    env = make_vec_env("CartPole-v1", n_envs=args.n_envs, seed=args.seed)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=64,
        batch_size=512,
        n_epochs=10,
        gae_lambda=0.9,
        gamma=0.98,
        learning_rate=3e-4,
        policy_kwargs={"net_arch": [400, 300], "optimizer_kwargs": {"eps": 1e-5, "fused": True}},
        seed=args.seed,
        device="cpu",
    )
    per_rollout = model.n_steps * args.n_envs
    first = args.rollouts // 5
    model.learn(total_timesteps=first * per_rollout)
    start = time.perf_counter()
    model.learn(total_timesteps=(args.rollouts - first) * per_rollout, reset_num_timesteps=False)
    seconds = time.perf_counter() - start
    print(
        "mean length of the last episodes:",
        sum(e["l"] for e in model.ep_info_buffer) / len(model.ep_info_buffer),
    )
    env.close()
    return {
        "env_steps": args.rollouts * per_rollout,
        "updates": args.rollouts * model.n_epochs * per_rollout // model.batch_size,
        "units_per_s": (args.rollouts - first) / seconds,
        "checksum": sum(p.double().abs().sum().item() for p in model.policy.parameters()),
    }


if __name__ == "__main__":
    print(json.dumps(main(parser.parse_args())))
