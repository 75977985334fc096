"""Stable-Baselines3's PPO on Gymnasium's CartPole."""

import ppo_settings as s
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

given = s.arguments()
torch.set_num_threads(1)
model = PPO(
    "MlpPolicy", make_vec_env(given.env, n_envs=s.N_ENVS, seed=given.seed), n_steps=s.N_STEPS,
    batch_size=s.BATCH_SIZE, n_epochs=s.N_EPOCHS, learning_rate=s.LEARNING_RATE, gamma=s.GAMMA,
    gae_lambda=s.GAE_LAMBDA, clip_range=s.CLIP_RANGE, vf_coef=s.VF_COEF, ent_coef=s.ENT_COEF,
    max_grad_norm=s.MAX_GRAD_NORM, seed=given.seed, device="cpu",
    policy_kwargs={"net_arch": {"pi": [s.HIDDEN] * 2, "vf": [s.HIDDEN] * 2}},
)  # fmt: skip
model.learn(s.WARM_UP)
updates = model._n_updates
clock = s.Clock()
model.learn(given.steps, reset_num_timesteps=False)
minibatches = (model._n_updates - updates) * s.ROLLOUT // s.BATCH_SIZE
clock.say(given.steps, minibatches, [episode["r"] for episode in model.ep_info_buffer or ()])
