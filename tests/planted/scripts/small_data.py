"""Defect: loader processes are started in every epoch for data that fits into a cache."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from hotloop import profile, progress

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(320, 12), torch.randn(320, 3))
    network = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    descent = torch.optim.Adam(network.parameters())
    for _ in range(16):
        source = None
        for _ in range(10):
            with profile("next_batch"):
                if source is None:
                    source = iter(DataLoader(data, batch_size=32, num_workers=2))
                seen, wanted = next(source)
            with profile("imitate"):
                loss = torch.nn.functional.mse_loss(network(seen), wanted)
                descent.zero_grad()
                loss.backward()
                descent.step()
            progress(updates=1)
