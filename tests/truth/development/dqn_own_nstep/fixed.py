# Stable-Baselines3 DQN with my own n-step replay (n = 5), on CartPole
import argparse
import json
import time

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import ReplayBufferSamples


class MultiStepReplay(ReplayBuffer):
    """Adds up the rewards of the next `horizon` steps (fewer at the end of an episode) when a batch is drawn."""

    def __init__(self, *args, horizon=5, gamma=0.99, **kwargs):
        super().__init__(*args, **kwargs)
        assert self.n_envs == 1
        self.horizon, self.gamma = horizon, gamma

    def look_ahead(self, starts):
        """For each start: sum of discounted rewards, discount of the value after them, index of the last step."""
        newest = (self.pos - 1) % self.buffer_size
        totals = np.zeros(len(starts))
        scales = np.ones(len(starts))
        lasts = np.zeros(len(starts), dtype=np.int64)
        at, alive = starts.copy(), np.ones(len(starts), dtype=bool)
        for _ in range(self.horizon):
            totals += np.where(alive, scales * self.rewards[at, 0], 0.0)
            scales *= np.where(alive, self.gamma, 1.0)
            lasts = np.where(alive, at, lasts)
            alive &= (self.dones[at, 0] == 0) & (at != newest)
            at = (at + 1) % self.buffer_size
        return totals, scales, lasts

    def _get_samples(self, batch_inds, env=None):
        totals, scales, lasts = self.look_ahead(batch_inds)
        real_end = self.dones[lasts, 0] * (1 - self.timeouts[lasts, 0])
        columns = (
            self.observations[batch_inds, 0],
            self.actions[batch_inds, 0],
            self.next_observations[lasts, 0],
            real_end.reshape(-1, 1),
            totals.astype(np.float32).reshape(-1, 1),
            scales.astype(np.float32).reshape(-1, 1),
        )
        return ReplayBufferSamples(*(th.from_numpy(np.ascontiguousarray(c)) for c in columns))


class Progress(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total = total
        self.t0 = None
        self.lengths = []

    def _on_step(self):
        if self.num_timesteps == self.total // 5:
            self.t0 = time.perf_counter()
        info = self.locals["infos"][0]
        if "episode" in info:
            self.lengths.append(info["episode"]["l"])
        return True

    def _on_training_end(self):
        self.steps_per_second = (self.total - self.total // 5) / (time.perf_counter() - self.t0)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=50_000)
    p.add_argument("--seed", type=int, default=123)
    p.add_argument("--batch", type=int, default=128)
    opt = p.parse_args()

    agent = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=1e-3,
        buffer_size=20_000,
        learning_starts=500,
        batch_size=opt.batch,
        gamma=0.99,
        train_freq=2,
        gradient_steps=1,
        target_update_interval=300,
        exploration_fraction=0.3,
        exploration_final_eps=0.04,
        replay_buffer_class=MultiStepReplay,
        replay_buffer_kwargs={"horizon": 5, "gamma": 0.99},
        policy_kwargs={"net_arch": [128, 128]},
        seed=opt.seed,
        device="cpu",
    )
    progress = Progress(opt.steps)
    agent.learn(opt.steps, callback=progress, log_interval=None)
    print("last episodes:", progress.lengths[-10:])
    total = sum(float(w.detach().double().abs().sum()) for w in agent.q_net.parameters())
    print(json.dumps({"env_steps": agent.num_timesteps, "updates": agent._n_updates,
                      "units_per_s": progress.steps_per_second, "checksum": round(total, 5)}))
