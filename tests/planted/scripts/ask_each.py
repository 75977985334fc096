"""Defect: 16 worlds move together, but the network is asked for each of them alone."""

import numpy as np
import torch
from _pace import turns

from hotloop import profile, progress

torch.set_num_threads(1)
WORLDS = 16
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 24)).astype(np.float32)
network = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

for _ in turns(1000):
    tensor = torch.from_numpy(states)
    moves = np.empty(WORLDS)
    for i in range(WORLDS):
        with profile("decide"), torch.inference_mode():
            moves[i] = int(network(tensor[i : i + 1]).argmax())
    with profile("world"):
        states = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
        states = states.astype(np.float32)
    with profile("bookkeeping"):
        total = float(np.square(states).sum())
    progress(env_steps=WORLDS)
