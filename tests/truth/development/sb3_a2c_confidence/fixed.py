"""A2C from Stable-Baselines3 on CartPole; a callback watches how sure the policy is of its actions."""
import argparse
import json
import time

import gymnasium as gym
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv


class CentredReward(gym.Wrapper):
    """Less reward far from the centre and with a tilted pole."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        x, _, tilt, _ = obs.tolist()
        return obs, reward - 0.1 * abs(x) - abs(tilt), terminated, truncated, info


class Confidence(BaseCallback):
    """Entropy, probability of the likeliest action and value estimates, averaged over each rollout."""

    def __init__(self, print_every: int):
        super().__init__()
        self.print_every = print_every
        self.rollouts = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        obs = torch.from_numpy(self.model.rollout_buffer.observations).flatten(0, 1)
        with torch.no_grad():
            dist = self.model.policy.get_distribution(obs)
            entropy = dist.entropy().mean().item()
            top = dist.distribution.probs.max(1).values.mean().item()
            value = self.model.policy.predict_values(obs).mean().item()
        self.logger.record("policy/entropy", entropy)
        self.logger.record("policy/top_probability", top)
        self.logger.record("policy/value", value)
        if self.rollouts % self.print_every == 0:
            print(f"{self.num_timesteps} steps: entropy {entropy:.3f}, likeliest action {top:.2f}, value {value:.2f}")


class Stopwatch(BaseCallback):
    def __init__(self, total: int):
        super().__init__()
        self.skip, self.began, self.first = total // 5, 0.0, 0

    def _on_step(self) -> bool:
        if not self.began and self.num_timesteps >= self.skip:
            self.began, self.first = time.perf_counter(), self.num_timesteps
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=100_000)
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--n-steps", type=int, default=32)
    parser.add_argument("--lr", type=float, default=7e-4)
    parser.add_argument("--seed", type=int, default=19)
    args = parser.parse_args()
    torch.set_num_threads(1)
    venv = DummyVecEnv([lambda: CentredReward(gym.make("CartPole-v1")) for _ in range(args.envs)])
    model = A2C(
        "MlpPolicy",
        venv,
        n_steps=args.n_steps,
        learning_rate=args.lr,
        gamma=0.98,
        ent_coef=0.01,
        seed=args.seed,
        device="cpu",
    )
    watch = Stopwatch(args.timesteps)
    model.learn(args.timesteps, callback=CallbackList([Confidence(print_every=100), watch]))
    rate = (model.num_timesteps - watch.first) / (time.perf_counter() - watch.began)
    check = sum(p.detach().double().abs().sum().item() for p in model.policy.parameters())
    result = {"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": rate, "checksum": check}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
