"""Defect: a network is asked at every step of a single cheap env."""

import gymnasium as gym
import torch
from _pace import turns

from hotloop import profile, progress

torch.set_num_threads(1)
game = gym.make("CartPole-v1")
network = torch.nn.Sequential(
    torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
)
state, _ = game.reset(seed=0)

for _ in turns(3200):
    with profile("choose_move"), torch.inference_mode():
        choice = torch.distributions.Categorical(logits=network(torch.as_tensor(state)))
        move = int(choice.sample())
    with profile("cartpole"):
        state, reward, terminated, truncated, _ = game.step(move)
    progress(env_steps=1)
    if terminated or truncated:
        state, _ = game.reset()
        progress(episodes=1)
