"""Actor-critic as a LightningModule: every epoch plays a rollout and fits it in minibatches."""

import json
import logging
import time
import warnings
from argparse import ArgumentParser

import gymnasium as gym
import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ActorCritic(nn.Module):
    def __init__(self, n_obs, n_act, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, n_act)
        self.v = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class PPOLightning(L.LightningModule):
    def __init__(self, n_envs=16, horizon=64, batch_size=128, gamma=0.99, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.envs = gym.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="vector_entry_point")
        self.net = ActorCritic(4, 2)
        self.obs, _ = self.envs.reset(seed=21)
        self.shuffle_rng = torch.Generator().manual_seed(21)
        self.env_steps = 0
        self.updates = 0
        self.epoch_ends = []

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=self.hparams.lr)

    @torch.no_grad()
    def rollout(self):
        T, N = self.hparams.horizon, self.hparams.n_envs
        obs = np.zeros((T, N, 4), np.float32)
        act = np.zeros((T, N), np.int64)
        logp = np.zeros((T, N), np.float32)
        rew = np.zeros((T, N), np.float32)
        done = np.zeros((T, N), np.float32)
        for t in range(T):
            obs[t] = self.obs
            logits, _ = self.net(torch.from_numpy(self.obs))
            log_probs = torch.log_softmax(logits, -1)
            a = torch.multinomial(log_probs.exp(), 1)
            logp[t] = log_probs.gather(1, a).squeeze(1).numpy()
            act[t] = a.squeeze(1).numpy()
            self.obs, rew[t], term, trunc, _ = self.envs.step(act[t])
            done[t] = np.logical_or(term, trunc)
        self.env_steps += T * N
        values = self.net(torch.from_numpy(obs).view(-1, 4))[1].view(T, N).numpy()
        ret = self.net(torch.from_numpy(self.obs))[1].numpy()
        returns = np.zeros((T, N), np.float32)
        for t in reversed(range(T)):
            ret = rew[t] + self.hparams.gamma * (1.0 - done[t]) * ret
            returns[t] = ret
        adv = returns - values
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        return [torch.from_numpy(x.reshape(T * N, *x.shape[2:])) for x in (obs, act, logp, returns, adv)]

    def train_dataloader(self):
        # fresh data each epoch
        dataset = TensorDataset(*self.rollout())
        return DataLoader(
            dataset,
            batch_size=self.hparams.batch_size,
            shuffle=True,
            num_workers=0,
            generator=self.shuffle_rng,
        )

    def training_step(self, batch, batch_idx):
        obs, act, old_logp, ret, adv = batch
        logits, value = self.net(obs)
        log_probs = torch.log_softmax(logits, -1)
        logp = log_probs.gather(1, act[:, None]).squeeze(1)
        ratio = (logp - old_logp).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        self.updates += 1
        return pg + 0.5 * (value - ret).pow(2).mean() - 0.01 * entropy

    def on_train_epoch_end(self):
        self.epoch_ends.append(time.perf_counter())


def cli_main():
    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    L.seed_everything(21)
    torch.set_num_threads(1)
    model = PPOLightning()
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    ends = model.epoch_ends
    first = len(ends) // 5
    print(
        json.dumps(
            {
                "env_steps": model.env_steps,
                "updates": model.updates,
                "units_per_s": (len(ends) - 1 - first) / (ends[-1] - ends[first]),
                "checksum": sum(p.detach().double().sum().item() for p in model.net.parameters()),
            }
        )
    )


if __name__ == "__main__":
    cli_main()
