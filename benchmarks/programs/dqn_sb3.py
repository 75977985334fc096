"""Stable-Baselines3's DQN on Gymnasium's CartPole."""

import dqn_settings as s
import torch
from stable_baselines3 import DQN

given = s.arguments()
torch.set_num_threads(1)


def model() -> DQN:
    return DQN(
        "MlpPolicy", given.env, seed=given.seed, device="cpu", learning_rate=s.LEARNING_RATE,
        buffer_size=s.BUFFER_SIZE, learning_starts=s.LEARNING_STARTS, batch_size=s.BATCH_SIZE, gamma=s.GAMMA,
        train_freq=s.TRAIN_FREQ, gradient_steps=1, target_update_interval=s.TARGET_UPDATE_INTERVAL,
        exploration_fraction=s.EXPLORATION_FRACTION, exploration_initial_eps=s.INITIAL_EPS,
        exploration_final_eps=s.FINAL_EPS, max_grad_norm=s.MAX_GRAD_NORM,
        policy_kwargs={"net_arch": [s.WIDTH] * 2},
    )  # fmt: skip


model().learn(s.WARM_UP)
clock = s.Clock()
learnt = model().learn(given.steps)
clock.say(given.steps, learnt._n_updates, [episode["r"] for episode in learnt.ep_info_buffer or ()])
