"""DQN as a LightningModule: the replay buffer is an IterableDataset that the Trainer draws batches from."""

import argparse
import copy
import json
import time
import warnings
from collections.abc import Iterator

import gymnasium as gym
import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

warnings.filterwarnings("ignore", category=UserWarning)


class ReplayBuffer:
    """Ring buffer in preallocated arrays."""

    def __init__(self, capacity: int, obs_dim: int, seed: int):
        self.states = np.zeros((capacity, obs_dim), dtype=np.float32)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.dones = np.zeros(capacity, dtype=np.float32)
        self.next_states = np.zeros((capacity, obs_dim), dtype=np.float32)
        self.capacity = capacity
        self.count = 0
        self.rng = np.random.default_rng(seed)

    def append(self, state, action, reward, done, next_state) -> None:
        i = self.count % self.capacity
        self.states[i] = state
        self.actions[i] = action
        self.rewards[i] = reward
        self.dones[i] = done
        self.next_states[i] = next_state
        self.count += 1

    def draw(self, size: int) -> np.ndarray:
        return self.rng.integers(0, min(self.count, self.capacity), size)


class ReplayDataset(IterableDataset):
    """Endless stream of batches."""

    def __init__(self, buffer: ReplayBuffer, batch_size: int):
        self.buffer = buffer
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[tuple]:
        b = self.buffer
        while True:
            i = b.draw(self.batch_size)
            arrays = (b.states[i], b.actions[i], b.rewards[i], b.dones[i], b.next_states[i])
            yield tuple(torch.from_numpy(array) for array in arrays)


class Player:
    """Owns the environment and adds what happens to the buffer."""

    def __init__(self, env: gym.Env, buffer: ReplayBuffer, seed: int):
        self.env = env
        self.buffer = buffer
        self.rng = np.random.default_rng(seed)
        self.state, _ = env.reset(seed=seed)
        self.steps = 0

    @torch.no_grad()
    def step(self, net: nn.Module, epsilon: float) -> None:
        if self.rng.random() < epsilon:
            action = int(self.rng.integers(self.env.action_space.n))
        else:
            action = int(net(torch.from_numpy(self.state)).argmax())
        next_state, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.append(self.state, action, reward, terminated, next_state)
        self.state = self.env.reset()[0] if terminated or truncated else next_state
        self.steps += 1


class DQN(L.LightningModule):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.args = args
        env = gym.make("Acrobot-v1")
        obs_dim = env.observation_space.shape[0]
        self.net = nn.Sequential(
            nn.Linear(obs_dim, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, int(env.action_space.n)),
        )
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.buffer = ReplayBuffer(20_000, obs_dim, args.seed)
        self.player = Player(env, self.buffer, args.seed)
        for _ in range(args.warm_start):
            self.player.step(self.net, epsilon=1.0)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.player.step(self.net, epsilon=max(0.05, 1.0 - batch_idx / 2000))
        states, actions, rewards, dones, next_states = batch
        chosen = self.net(states).gather(1, actions.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            best = self.target(next_states).max(1).values
            goal = rewards + self.args.gamma * (1.0 - dones) * best
        if batch_idx % self.args.sync_every == 0:
            self.target.load_state_dict(self.net.state_dict())
        return nn.functional.mse_loss(chosen, goal)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.net.parameters(), lr=self.args.lr)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(ReplayDataset(self.buffer, self.args.batch_size), batch_size=None)


class Clock(L.Callback):
    def __init__(self, first: int):
        self.first = first
        self.began = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        if batch_idx == self.first:
            self.began = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=3300)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--warm-start", type=int, default=500)
    parser.add_argument("--sync-every", type=int, default=250)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    torch.set_num_threads(1)
    L.seed_everything(args.seed)
    model = DQN(args)
    clock = Clock(args.max_steps // 5)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=args.max_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(model)
    elapsed = time.perf_counter() - clock.began
    print(
        json.dumps(
            {
                "env_steps": model.player.steps,
                "updates": trainer.global_step,
                "units_per_s": (args.max_steps - clock.first) / elapsed,
                "checksum": sum(p.detach().abs().sum().item() for p in model.net.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
