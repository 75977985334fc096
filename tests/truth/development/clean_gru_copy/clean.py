"""Recurrent policy gradient on a copy task: the agent repeats the symbol it saw two steps ago."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, SYMBOLS = 128, 24, 6


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 32)
        self.rnn = nn.GRU(32, 96, batch_first=True)
        self.pi = nn.Linear(96, SYMBOLS)
        self.v = nn.Linear(96, 1)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.pi(h), self.v(h).squeeze(-1)


def main(iterations=700):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    net = Memory()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    for k in range(iterations):
        if k == iterations // 5:
            start = time.perf_counter()
        seen = torch.randint(0, SYMBOLS, (BATCH, LENGTH))
        logits, value = net(seen)
        logp = F.log_softmax(logits, -1)
        with torch.no_grad():
            act = torch.distributions.Categorical(logits=logits).sample()
            right = act[:, 2:] == seen[:, :-2]
            reward = F.pad(right.float(), (2, 0))
        chosen = logp.gather(-1, act.unsqueeze(-1)).squeeze(-1)
        loss = -(chosen * (reward - value.detach())).mean() + F.mse_loss(value, reward)
        opt.zero_grad()
        loss.backward()
        opt.step()
    speed = (iterations - iterations // 5) / (time.perf_counter() - start)
    total = float(sum(p.double().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": iterations, "units_per_s": speed, "checksum": total}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
