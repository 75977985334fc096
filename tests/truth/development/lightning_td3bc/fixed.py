"""TD3+BC on a fixed dataset of a spring-mass system, with Lightning."""

import argparse
import copy
import json
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(n, 6, generator=g)
    k = torch.randn(2, 6, generator=g) * 0.3
    a = torch.tanh(s @ k.T + 0.3 * torch.randn(n, 2, generator=g))
    s2 = 0.95 * s
    s2[:, :2] += 0.1 * s[:, 2:4]
    s2[:, 2:4] += 0.1 * a
    r = -(s[:, :2] ** 2).sum(1, keepdim=True)
    return TensorDataset(s, a, r, s2)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, o))


class TD3BC(L.LightningModule):
    def __init__(self, alpha=2.5, tau=0.005, policy_freq=2):
        super().__init__()
        self.automatic_optimization = False
        self.actor, self.q1, self.q2 = mlp(6, 2), mlp(8, 1), mlp(8, 1)
        self.target = copy.deepcopy(nn.ModuleList([self.actor, self.q1, self.q2])).requires_grad_(False)
        self.alpha, self.tau, self.policy_freq = alpha, tau, policy_freq
        self.updates = 0

    def configure_optimizers(self):
        critics = [*self.q1.parameters(), *self.q2.parameters()]
        return torch.optim.Adam(self.actor.parameters(), 3e-4), torch.optim.Adam(critics, 3e-4)

    def log_gradients(self, prefix, *modules):
        for m in modules:
            for name, p in m.named_parameters():
                self.log(f"{prefix}/{name}/norm", p.grad.norm())
                self.log(f"{prefix}/{name}/max", p.grad.abs().max())

    def training_step(self, batch, batch_idx):
        s, a, r, s2 = batch
        actor_opt, critic_opt = self.optimizers()
        actor_t, q1_t, q2_t = self.target
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)
            x2 = torch.cat([s2, (torch.tanh(actor_t(s2)) + noise).clamp(-1, 1)], 1)
            y = r + 0.99 * torch.min(q1_t(x2), q2_t(x2))
        x = torch.cat([s, a], 1)
        critic_loss = F.mse_loss(self.q1(x), y) + F.mse_loss(self.q2(x), y)
        critic_opt.zero_grad()
        self.manual_backward(critic_loss)
        if self.updates % 200 == 0:
            self.log_gradients("critic", self.q1, self.q2)
        critic_opt.step()
        self.updates += 1
        if self.updates % self.policy_freq == 0:
            pi = torch.tanh(self.actor(s))
            q = self.q1(torch.cat([s, pi], 1))
            actor_loss = -self.alpha / q.abs().mean().detach() * q.mean() + F.mse_loss(pi, a)
            actor_opt.zero_grad()
            self.manual_backward(actor_loss)
            actor_opt.step()
            with torch.no_grad():
                live = [*self.actor.parameters(), *self.q1.parameters(), *self.q2.parameters()]
                torch._foreach_lerp_(list(self.target.parameters()), live, self.tau)


class Speed(L.Callback):
    def __init__(self, skip):
        self.skip = skip

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.updates == self.skip:
            self.t0 = time.perf_counter()

    def on_train_end(self, trainer, module):
        self.rate = (module.updates - self.skip) / (time.perf_counter() - self.t0)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=5000)
    args = p.parse_args()
    L.seed_everything(11, verbose=False)
    data = make_dataset(200_000, 1)
    sampler = BatchSampler(RandomSampler(data), 256, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model, speed = TD3BC(), Speed(args.updates // 5)
    trainer = L.Trainer(
        max_epochs=-1,
        # every actor step counts as a step of its own
        max_steps=args.updates + args.updates // 2,
        accelerator="cpu",
        logger=CSVLogger(".", flush_logs_every_n_steps=1000),
        log_every_n_steps=200,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[speed],
    )
    trainer.fit(model, loader)
    checksum = float(sum(w.double().sum() for w in model.actor.parameters()))
    print(
        json.dumps(
            {"env_steps": None, "updates": model.updates, "units_per_s": speed.rate, "checksum": checksum}
        )
    )
