# Double DQN for an elevator dispatcher, built from TorchRL parts
import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import ListStorage, ReplayBuffer
from torchrl.envs import GymWrapper
from torchrl.modules import EGreedyModule, MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

SEED = 5
FRAMES_PER_BATCH = 64
BATCH_SIZE = 64
OPTIM_STEPS = 16


class Elevator(gym.Env):
    """One car, eight floors; passengers press call buttons, the car moves up, down or opens doors."""

    FLOORS = 8

    def __init__(self):
        self.observation_space = spaces.Box(0.0, np.inf, (2 * self.FLOORS + self.FLOORS,), np.float32)
        self.action_space = spaces.Discrete(3)

    def _obs(self):
        here = np.zeros(self.FLOORS, dtype=np.float32)
        here[self.pos] = 1.0
        return np.concatenate([here, self.waiting, self.riding])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pos = 0
        self.waiting = np.zeros(self.FLOORS, dtype=np.float32)
        self.riding = np.zeros(self.FLOORS, dtype=np.float32)
        self.arrivals = self.np_random.random(200)
        self.floors = self.np_random.integers(0, self.FLOORS, (200, 4))
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        action = int(action)
        reward = 0.0
        if action == 0:
            self.pos = max(0, self.pos - 1)
        elif action == 1:
            self.pos = min(self.FLOORS - 1, self.pos + 1)
        else:
            reward += float(self.riding[self.pos])
            self.riding[self.pos] = 0.0
            for k in range(int(self.waiting[self.pos])):
                self.riding[self.floors[self.t, 1 + k % 3]] += 1.0
            self.waiting[self.pos] = 0.0
        if self.arrivals[self.t] < 0.15:
            self.waiting[self.floors[self.t, 0]] += 1.0
        reward -= 0.02 * float(self.waiting.sum() + self.riding.sum())
        self.t += 1
        return self._obs(), reward, False, self.t >= 200, {}


def main(total_frames):
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    torch.set_num_threads(1)

    env = GymWrapper(Elevator(), categorical_action_encoding=True)
    env.set_seed(SEED)

    net = MLP(in_features=env.observation_spec["observation"].shape[-1],
              out_features=3, num_cells=[96, 96], activation_class=torch.nn.ReLU)
    actor = QValueActor(net, spec=env.action_spec)
    exploration = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05,
                                annealing_num_steps=total_frames // 2)
    policy = TensorDictSequential(actor, exploration)

    collector = Collector(env, policy, frames_per_batch=FRAMES_PER_BATCH,
                                  total_frames=total_frames)
    replay = ReplayBuffer(storage=ListStorage(20_000), batch_size=BATCH_SIZE)

    loss_module = DQNLoss(actor, loss_function="l2", delay_value=True, double_dqn=True)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, eps=0.99)
    optim = torch.optim.Adam(loss_module.parameters(), lr=5e-4)

    frames = updates = 0
    warm = total_frames // 5
    t0, f0 = None, 0
    for i, data in enumerate(collector):
        frames += data.numel()
        exploration.step(data.numel())
        replay.extend(data.reshape(-1))
        for _ in range(OPTIM_STEPS):
            sample = replay.sample()
            loss = loss_module(sample)["loss"]
            optim.zero_grad()
            loss.backward()
            optim.step()
            target_update.step()
            updates += 1
        if i % 10 == 0:
            print(f"{frames:7d} frames, reward {data['next', 'reward'].mean().item():+.3f}, "
                  f"loss {loss.item():.4f}")
        if t0 is None and frames >= warm:
            t0, f0 = time.perf_counter(), frames
    seconds = time.perf_counter() - t0
    collector.shutdown()

    checksum = sum(p.detach().double().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": frames, "updates": updates,
                      "units_per_s": (frames - f0) / seconds, "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12000)
