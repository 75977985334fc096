"""Stable-Baselines3's DQN on Gymnasium's CartPole."""

import dqn_settings as s
import torch
from stable_baselines3 import DQN

given = s.arguments()
torch.set_num_threads(1)


def model() -> DQN:
    return DQN(
        "MlpPolicy", given.env, seed=given.seed, device="cpu", learning_rate=s.LEARNING_RATE,
        buffer_size=s.CAPACITY, learning_starts=s.LEARNING_STARTS, batch_size=s.BATCH, gamma=s.DISCOUNT,
        train_freq=s.TRAIN_EVERY, gradient_steps=1, target_update_interval=s.TARGET_EVERY,
        exploration_fraction=s.EPSILON_FRACTION, exploration_initial_eps=s.EPSILON_START,
        exploration_final_eps=s.EPSILON_END, max_grad_norm=s.LARGEST_NORM,
        policy_kwargs={"net_arch": [s.HIDDEN] * 2},
    )  # fmt: skip


model().learn(s.WARM_UP)
clock = s.Clock()
learnt = model().learn(given.steps)
clock.say(given.steps, learnt._n_updates, [episode["r"] for episode in learnt.ep_info_buffer or ()])
