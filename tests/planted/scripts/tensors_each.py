"""Defect: the observations of 32 worlds become tensors one by one."""

import numpy as np
import torch
from _pace import turns

from hotloop import profile, progress

torch.set_num_threads(1)
WORLDS = 32
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 24)).astype(np.float32)
network = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

for _ in turns(1400):
    rows = []
    for i in range(WORLDS):
        with profile("to_tensor"):
            rows.append(torch.tensor(states[i].tolist()).unsqueeze(0).clone())
    with profile("brain"), torch.inference_mode():
        moves = network(torch.cat(rows)).argmax(dim=1).numpy()
    with profile("world"):
        states = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
        states = states.astype(np.float32)
    progress(env_steps=WORLDS)
