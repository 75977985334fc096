"""Stable-Baselines3's PPO on Gymnasium's CartPole."""

import ppo_settings as s
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

given = s.arguments()
torch.set_num_threads(1)
model = PPO(
    "MlpPolicy", make_vec_env(given.env, n_envs=s.ENVS, seed=given.seed), n_steps=s.STEPS,
    batch_size=s.MINIBATCH, n_epochs=s.EPOCHS, learning_rate=s.LEARNING_RATE, gamma=s.DISCOUNT,
    gae_lambda=s.TRACE, clip_range=s.CLIP, vf_coef=s.VALUE_WEIGHT, ent_coef=s.ENTROPY_WEIGHT,
    max_grad_norm=s.LARGEST_NORM, seed=given.seed, device="cpu",
    policy_kwargs={"net_arch": {"pi": [s.HIDDEN] * 2, "vf": [s.HIDDEN] * 2}},
)  # fmt: skip
model.learn(s.WARM_UP)
updates = model._n_updates
clock = s.Clock()
model.learn(given.steps, reset_num_timesteps=False)
minibatches = (model._n_updates - updates) * s.BATCH // s.MINIBATCH
clock.say(given.steps, minibatches, [episode["r"] for episode in model.ep_info_buffer or ()])
