"""Nothing wrong: rollouts of 16 worlds, then a few minibatches, with torch."""

import numpy as np
import torch
from _pace import turns

from hotloop import profile, progress

torch.set_num_threads(1)
torch.manual_seed(0)
WORLDS, STEPS = 16, 64
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 24)).astype(np.float32)
network = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5))
descent = torch.optim.Adam(network.parameters(), lr=1e-4)
seen = np.zeros((STEPS, WORLDS, 24), dtype=np.float32)

for _ in turns(36):
    for step in range(STEPS):
        seen[step] = states
        with profile("play"), torch.inference_mode():
            moves = network(torch.from_numpy(states))[:, :4].argmax(dim=1).numpy()
        with profile("worlds"):
            for _ in range(8):
                states = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
            states = states.astype(np.float32)
        progress(env_steps=WORLDS)
    with profile("gae"):
        returns = np.cumsum(-np.square(seen).sum(axis=2)[::-1], axis=0)[::-1].ravel().astype(np.float32)
    everything = torch.from_numpy(seen.reshape(-1, 24))
    targets = torch.from_numpy(returns.copy()) / 1000
    for _ in range(8):
        with profile("minibatch"):
            chosen = torch.randint(0, STEPS * WORLDS, (256,))
            loss = (network(everything[chosen])[:, 4] - targets[chosen]).square().mean()
            descent.zero_grad()
            loss.backward()
            descent.step()
        progress(updates=1)
