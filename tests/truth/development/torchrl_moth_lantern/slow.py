"""DQN from pixels with TorchRL: a moth has to reach a lantern and stay away from the spider web."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.tensor_specs import Unbounded
from torchrl.envs import GymWrapper, TransformedEnv
from torchrl.envs.transforms import Transform
from torchrl.modules import EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

SIZE = 84
MOVES = np.array([[0, 0], [-4, 0], [4, 0], [0, -4], [0, 4]])


class MothEnv(gym.Env):
    """84x84 colour picture, five moves, 60 steps."""

    def __init__(self):
        self.observation_space = spaces.Dict({"pixels": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)})
        self.action_space = spaces.Discrete(len(MOVES))
        rows = np.linspace(20, 50, SIZE).astype(np.uint8)
        self.night = np.stack([rows, rows, rows + 40], -1)[:, None, :].repeat(SIZE, 1)

    def _picture(self):
        frame = self.night.copy()
        for (y, x), colour in ((self.lantern, (250, 220, 90)), (self.web, (200, 60, 200)), (self.moth, (90, 250, 120))):
            frame[y - 4:y + 4, x - 4:x + 4] = colour
        return {"pixels": frame}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.moth, self.lantern, self.web = self.np_random.integers(6, SIZE - 6, size=(3, 2))
        self.t = 0
        return self._picture(), {}

    def step(self, action):
        before = np.abs(self.moth - self.lantern).sum()
        self.moth = np.clip(self.moth + MOVES[int(action)], 6, SIZE - 6)
        self.t += 1
        after = np.abs(self.moth - self.lantern).sum()
        reward = 0.05 * float(before - after)
        done = bool(after < 8)
        if done:
            reward += 2.0
        if np.abs(self.moth - self.web).max() < 6:
            reward -= 1.0
        return self._picture(), reward, done, self.t >= 60, {}


class Shrink(Transform):
    """Colour picture to a 28x28 grey one in [0, 1]."""

    def _apply_transform(self, pixels):
        grey = pixels.to(torch.float32).mean(-1) / 255.0
        flat = grey.reshape(-1, 1, SIZE, SIZE)
        small = nn.functional.avg_pool2d(flat, 3)
        return small.reshape(*grey.shape[:-2], 1, SIZE // 3, SIZE // 3)

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec):
        shape = (*observation_spec.shape, 1, SIZE // 3, SIZE // 3)
        observation_spec["small"] = Unbounded(shape=shape, dtype=torch.float32)
        return observation_spec


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--total-frames", type=int, default=20000)
    p.add_argument("--warmup", type=int, default=300)
    p.add_argument("--train-every", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--buffer-size", type=int, default=10000)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def make_policy(n_actions):
    net = nn.Sequential(nn.Conv2d(1, 16, 5, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(), nn.Flatten(-3),
                        nn.Linear(16 * 9, 64), nn.ReLU(), nn.Linear(64, n_actions))
    return net


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    env = TransformedEnv(GymWrapper(MothEnv()), Shrink(in_keys=["pixels"], out_keys=["small"]))
    env.set_seed(args.seed)
    net = make_policy(len(MOVES))
    values = TensorDictModule(net, in_keys=["small"], out_keys=["action_value"])
    actor = TensorDictSequential(values, QValueModule(spec=env.action_spec))
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=args.total_frames // 2)
    behaviour = TensorDictSequential(actor, explore)

    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(args.buffer_size), batch_size=args.batch_size,
        transform=Shrink(in_keys=["pixels", ("next", "pixels")], out_keys=["small", ("next", "small")]))
    kept = ["pixels", "action", ("next", "pixels"), ("next", "reward"), ("next", "done"), ("next", "terminated")]
    loss_fn = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss_fn.make_value_estimator(gamma=0.97)
    target = SoftUpdate(loss_fn, eps=0.99)
    optim = torch.optim.Adam(loss_fn.parameters(), lr=args.lr)

    td = env.reset()
    returns, episode_return, updates = [], 0.0, 0
    started, marked = None, 0
    for frame in range(args.total_frames):
        if frame == args.total_frames // 5:
            started, marked = time.perf_counter(), frame
        with torch.no_grad():
            td = behaviour(td)
        explore.step(1)
        td, following = env.step_and_maybe_reset(td)
        replay.add(td.select(*kept))
        episode_return += td["next", "reward"].item()
        if td["next", "done"].item():
            returns.append(episode_return)
            episode_return = 0.0
            if len(returns) % 20 == 0:
                print(f"frame {frame} episodes {len(returns)} return {np.mean(returns[-20:]):.2f}")
        td = following
        if frame >= args.warmup and frame % args.train_every == 0:
            loss = loss_fn(replay.sample())["loss"]
            optim.zero_grad()
            loss.backward()
            optim.step()
            target.step()
            updates += 1
    speed = (args.total_frames - marked) / (time.perf_counter() - started)
    checksum = float(sum(p.detach().double().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": args.total_frames, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
