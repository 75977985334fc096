"""Trains with a library's own classes and their default settings; prints what it counted as JSON.

    library_defaults.py sb3_ppo 4096

`acting` is how often the policy chose an action while experience was collected: seen by a hook on the policy,
or from the library's settings where each step needs one call.
"""

import json
import sys
import warnings
from typing import Any

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


def counted(owner: Any, name: str) -> list[int]:
    """Count the calls of a method of one object."""
    plain, count = getattr(owner, name), [0]

    def call(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return plain(*args, **kwargs)

    setattr(owner, name, call)
    return count


def sb3(algorithm: Any, policy: str, env: Any, steps: int, **settings: Any) -> dict[str, int | None]:
    """An algorithm of Stable-Baselines3 or sb3-contrib."""
    model = algorithm(policy, env, seed=0, device="cpu", **settings)
    on_policy = hasattr(model, "rollout_buffer")
    acting = counted(model.policy, "forward" if on_policy else "_predict")
    optimizers = [
        value
        for part in (model.policy, getattr(model, "actor", None), getattr(model, "critic", None))
        for value in [getattr(part, "optimizer", None)]
        if value is not None
    ]
    steps_of = [counted(one, "step") for one in optimizers]
    model.learn(steps)
    return {
        "env_steps": model.num_timesteps,
        "acting": acting[0],
        "updates": max(count[0] for count in steps_of),
    }


def sb3_ppo(steps: int) -> dict[str, int | None]:
    from stable_baselines3 import PPO

    return sb3(PPO, "MlpPolicy", "CartPole-v1", steps)


def sb3_a2c(steps: int) -> dict[str, int | None]:
    from stable_baselines3 import A2C

    return sb3(A2C, "MlpPolicy", "CartPole-v1", steps)


def sb3_dqn(steps: int) -> dict[str, int | None]:
    from stable_baselines3 import DQN

    return sb3(DQN, "MlpPolicy", "CartPole-v1", steps)


def sb3_sac(steps: int) -> dict[str, int | None]:
    from stable_baselines3 import SAC

    return sb3(SAC, "MlpPolicy", "Pendulum-v1", steps)


def sb3_td3(steps: int) -> dict[str, int | None]:
    from stable_baselines3 import TD3

    return sb3(TD3, "MlpPolicy", "Pendulum-v1", steps)


def contrib_recurrent_ppo(steps: int) -> dict[str, int | None]:
    from sb3_contrib import RecurrentPPO

    return sb3(RecurrentPPO, "MlpLstmPolicy", "CartPole-v1", steps)


def contrib_maskable_ppo(steps: int) -> dict[str, int | None]:
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    return sb3(MaskablePPO, "MlpPolicy", InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10), steps)


def contrib_tqc(steps: int) -> dict[str, int | None]:
    from sb3_contrib import TQC

    return sb3(TQC, "MlpPolicy", "Pendulum-v1", steps)


def torchrl_dqn(steps: int) -> dict[str, int | None]:
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, StepCounter, TransformedEnv
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(0)
    net = TensorDictModule(
        nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
        ["observation"],
        ["action_value"],
    )
    actor = QValueActor(net, spec=env.action_spec)
    explore = EGreedyModule(spec=env.action_spec, annealing_num_steps=steps // 2)
    policy = TensorDictSequential(actor, explore)
    collector = Collector(env, policy, frames_per_batch=64, total_frames=steps)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=64)
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    target = SoftUpdate(loss_module, eps=0.995)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    frames = updates = 0
    for data in collector:
        frames += data.numel()
        buffer.extend(data.reshape(-1))
        explore.step(data.numel())
        for _ in range(8):
            loss = loss_module(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.step()
            updates += 1
    collector.shutdown()
    return {"env_steps": frames, "acting": frames, "updates": updates}


def torchrl_ppo(steps: int) -> dict[str, int | None]:
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torch.distributions import Categorical
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, StepCounter, TransformedEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())
    env.set_seed(0)
    body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    actor = ProbabilisticActor(
        TensorDictModule(body, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    value = ValueOperator(
        nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)),
        in_keys=["observation"],
    )
    collector = Collector(env, actor, frames_per_batch=256, total_frames=steps)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    loss_module = ClipPPOLoss(actor, value)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=3e-4)
    frames = updates = 0
    for data in collector:
        frames += data.numel()
        for _ in range(4):
            advantage(data)
            flat = data.reshape(-1)
            for rows in torch.randperm(len(flat)).split(64):
                losses = loss_module(flat[rows])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
                updates += 1
    collector.shutdown()
    return {"env_steps": frames, "acting": frames, "updates": updates}


def lightning_dqn(steps: int) -> dict[str, int | None]:
    """A LightningModule that acts, stores and learns in its training step."""
    import gymnasium as gym
    import lightning
    import numpy as np
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Agent(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
            self.target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
            self.target.load_state_dict(self.net.state_dict())
            self.env = gym.make("CartPole-v1")
            self.state, _ = self.env.reset(seed=0)
            self.rows = np.zeros((10_000, 11), np.float32)
            self.filled = self.acted = 0
            self.chance = np.random.default_rng(0)

        def play(self) -> None:
            if self.chance.random() < 0.1 or self.filled < 64:
                action = int(self.chance.integers(2))
            else:
                self.acted += 1
                with torch.no_grad():
                    action = int(self.net(torch.from_numpy(self.state)).argmax())
            following, reward, terminated, truncated, _ = self.env.step(action)
            row = (*self.state, action, reward, *following, terminated)
            self.rows[self.filled % len(self.rows)] = row
            self.filled += 1
            self.state = self.env.reset()[0] if terminated or truncated else following

        def training_step(self, batch: Any, number: int) -> Any:
            self.play()
            drawn = self.chance.integers(0, min(self.filled, len(self.rows)), 64)
            rows = torch.from_numpy(self.rows[drawn])
            with torch.no_grad():
                wanted = rows[:, 5] + 0.99 * (1 - rows[:, 10]) * self.target(rows[:, 6:10]).max(1).values
            chosen = self.net(rows[:, :4]).gather(1, rows[:, 4:5].long()).squeeze(1)
            return nn.functional.mse_loss(chosen, wanted)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.net.parameters(), lr=1e-3)

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.arange(steps)), batch_size=1)

    agent = Agent()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(agent)
    return {"env_steps": agent.filled, "acting": agent.acted, "updates": trainer.global_step}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]))))
