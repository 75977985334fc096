"""Stable-Baselines3 PPO on CartPole; prints its training time."""

import sys
import time

import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, batch_size=128, n_epochs=4, seed=0, device="cpu")
began, cpu = time.perf_counter(), time.process_time()
model.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
print(f"train_seconds {time.perf_counter() - began:.3f} cpu {time.process_time() - cpu:.3f}")
