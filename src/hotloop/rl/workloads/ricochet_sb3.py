"""Ricochet Robots with Stable-Baselines3: its PPO, with our picture encoders as feature extractors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import torch
from gymnasium.spaces import Box
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

from hotloop.rl.envs.ricochet.env import RicochetEnv
from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder
from hotloop.rl.train.runs import ProgressLine, StopRequests, sb3_mean_return, torch_threads
from hotloop.rl.workloads.outcome import NO_AGENT, Outcome

if TYPE_CHECKING:
    from hotloop.rl.workloads.ricochet_config import Ricochet

FEATURES, LAYERS = 128, 2


class PictureExtractor(BaseFeaturesExtractor):
    """One of our encoders, its memory cleared at every step."""

    def __init__(self, observation_space: Box, encoder: Literal["convlstm", "conv"], channels: int):
        super().__init__(observation_space, FEATURES)
        shape = observation_space.shape
        self.encoder: ConvLSTMEncoder | ConvEncoder
        if encoder == "convlstm":
            self.encoder = ConvLSTMEncoder(shape, channels, FEATURES, LAYERS, repeats=1)
        else:
            self.encoder = ConvEncoder(shape, channels, FEATURES)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features [batch, FEATURES] of pictures [batch, channels, height, width] in 0..1."""
        batch = len(observations)
        state = observations.new_zeros(batch, *self.encoder.state_shape)
        episode_starts = torch.ones(1, batch, dtype=torch.bool, device=observations.device)
        features: torch.Tensor = self.encoder(observations[None], state, episode_starts)[0]
        return features[0]


def extractor_settings(encoder: Literal["convlstm", "conv"], channels: int) -> dict[str, Any]:
    """The `policy_kwargs` that make a policy use `PictureExtractor`."""
    settings = {"encoder": encoder, "channels": channels}
    return {"features_extractor_class": PictureExtractor, "features_extractor_kwargs": settings}


def train_sb3(config: Ricochet, env_settings: dict[str, Any], quiet: bool = True) -> Outcome:
    """Train with Stable-Baselines3's PPO at our settings."""
    pictures = config.obs_mode == "rgb_image"
    policy: dict[str, Any] = {"net_arch": [] if pictures else list(config.net_arch)}
    if pictures:
        policy |= extractor_settings("convlstm" if config.convlstm else "conv", config.channels)
    samples = config.n_steps * config.n_envs
    batch_size = config.batch_size or max(samples // 4, 2)
    model = PPO(
        "CnnPolicy" if pictures else "MlpPolicy",
        DummyVecEnv([lambda: RicochetEnv(**env_settings)] * config.n_envs),
        n_steps=config.n_steps,
        batch_size=batch_size,
        n_epochs=config.n_epochs,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        policy_kwargs=policy,
        seed=config.seed,
    )
    line = ProgressLine(config.total_timesteps, quiet=quiet)
    with torch_threads(1), StopRequests() as stop:

        def after_step(*_: Any) -> bool:
            line.update(model.num_timesteps, sb3_mean_return(model))
            return stop.by is None

        began_s = time.perf_counter()
        model.learn(config.total_timesteps, callback=after_step)
        seconds = time.perf_counter() - began_s
    line.close()
    episodes = list(model.ep_info_buffer or [])
    remark = "Stable-Baselines3's PPO: the ConvLSTM is a feature extractor without memory"
    return Outcome(
        env_steps=model.num_timesteps,
        updates=model._n_updates * -(-samples // batch_size),
        episodes=int(getattr(model, "_episode_num", len(episodes))) or len(episodes),
        mean_return=sb3_mean_return(model),
        seconds=seconds,
        stopped_by=stop.by,
        kept=None if stop.by is None else NO_AGENT.format("sb3"),
        remarks=(remark,) if pictures and config.convlstm else (),
    )
