"""TD3+BC on a fixed dataset that is held as tensors."""

import copy
import json
import time
from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OBS_DIM, ACT_DIM = 17, 6


def synthetic_dataset(n: int, gen: torch.Generator) -> tuple[Tensor, ...]:
    """Linear dynamics with a noisy linear controller."""
    a = torch.randn(OBS_DIM, OBS_DIM, generator=gen) * 0.15
    b = torch.randn(ACT_DIM, OBS_DIM, generator=gen) * 0.3
    k = torch.randn(OBS_DIM, ACT_DIM, generator=gen) * 0.3
    obs = torch.randn(n, OBS_DIM, generator=gen)
    act = torch.tanh(obs @ k + 0.3 * torch.randn(n, ACT_DIM, generator=gen))
    nxt = torch.tanh(obs @ a + act @ b) + 0.05 * torch.randn(n, OBS_DIM, generator=gen)
    rew = -nxt.square().mean(1, keepdim=True) - 0.01 * act.square().mean(1, keepdim=True)
    return obs, act, rew, nxt


class TwinQ(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        n = OBS_DIM + ACT_DIM
        self.a = nn.Sequential(
            nn.Linear(n, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, 1),
        )
        self.b = nn.Sequential(
            nn.Linear(n, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, 1),
        )

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([obs, act], 1)
        return self.a(x), self.b(x)


class TD3BC:
    def __init__(self, width: int = 512, alpha: float = 2.5) -> None:
        self.q = TwinQ(width)
        self.pi = nn.Sequential(
            nn.Linear(OBS_DIM, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, ACT_DIM),
            nn.Tanh(),
        )
        self.q_target, self.pi_target = copy.deepcopy(self.q), copy.deepcopy(self.pi)
        self.online: list[Tensor] = [*self.q.parameters(), *self.pi.parameters()]
        self.target: list[Tensor] = [*self.q_target.parameters(), *self.pi_target.parameters()]
        self.q_opt = torch.optim.Adam(self.q.parameters(), lr=3e-4, fused=True)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr=3e-4, fused=True)
        self.alpha = alpha

    def update(self, obs: Tensor, act: Tensor, rew: Tensor, nxt: Tensor) -> Tensor:
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(act)).clamp_(-0.5, 0.5)
            nxt_act = (self.pi_target(nxt) + noise).clamp_(-1, 1)
            y = rew + 0.99 * torch.min(*self.q_target(nxt, nxt_act))
        q1, q2 = self.q(obs, act)
        q_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        self.q.requires_grad_(False)
        pi = self.pi(obs)
        q = self.q.a(torch.cat([obs, pi], 1))
        pi_loss = F.mse_loss(pi, act) - self.alpha * q.mean() / q.detach().abs().mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        self.q.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.target, self.online, 0.005)
        return q_loss.detach()


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--updates", type=int, default=130)
    parser.add_argument("--batch-size", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)
    data = synthetic_dataset(100_000, gen)
    algo = TD3BC()
    order = torch.randint(0, len(data[0]), (args.updates, args.batch_size), generator=gen)
    t0, i0 = time.perf_counter(), 0
    for i in range(args.updates):
        if i == args.updates // 5:
            t0, i0 = time.perf_counter(), i
        loss = algo.update(*(x[order[i]] for x in data))
        if i % 50 == 0:
            print(f"update {i} q_loss {loss.item():.5f}")
    rate = (args.updates - i0) / (time.perf_counter() - t0)
    checksum = sum(p.detach().double().sum().item() for p in algo.online)
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
