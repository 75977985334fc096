"""Behaviour cloning by another library, for benchmarks/imitate.py: `python bc_peer.py LIBRARY SAMPLES.npz`.

Runs in a separate Python that has the library; prints {"samples_per_s": ...} as its last line. Network and
batch size are ours (64-64, 256); one thread; the first pass is warm-up, the second is timed.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

BATCH, HIDDEN = 256, (64, 64)


def d3rlpy(observations: np.ndarray, actions: np.ndarray) -> float:
    import d3rlpy as library
    import torch

    torch.set_num_threads(1)
    ends = np.zeros(len(actions), dtype=np.float32)
    ends[-1] = 1.0
    data = library.dataset.MDPDataset(observations, actions, np.zeros(len(actions), dtype=np.float32), ends)
    encoder = library.models.VectorEncoderFactory(list(HIDDEN))
    bc = library.algos.BCConfig(batch_size=BATCH, encoder_factory=encoder).create(device="cpu:0")
    steps = len(actions) // BATCH
    quiet = {"show_progress": False, "logger_adapter": library.logging.NoopAdapterFactory()}
    bc.fit(data, n_steps=steps, n_steps_per_epoch=steps, **quiet)
    began = time.perf_counter()
    bc.fit(data, n_steps=steps, n_steps_per_epoch=steps, **quiet)
    return steps * BATCH / (time.perf_counter() - began)


def imitation(observations: np.ndarray, actions: np.ndarray) -> float:
    import gymnasium
    import torch
    from imitation.algorithms import bc
    from imitation.data.types import Transitions
    from stable_baselines3.common.policies import ActorCriticPolicy

    torch.set_num_threads(1)
    seen = gymnasium.spaces.Box(-np.inf, np.inf, observations.shape[1:], np.float32)
    done = gymnasium.spaces.Box(-1.0, 1.0, actions.shape[1:], np.float32)
    infos = np.array([{}] * len(actions))
    trainer = bc.BC(
        observation_space=seen,
        action_space=done,
        rng=np.random.default_rng(0),
        demonstrations=Transitions(
            obs=observations,
            acts=actions,
            infos=infos,
            next_obs=np.roll(observations, -1, axis=0),  # not looked at by cloning
            dones=np.zeros(len(actions), dtype=np.bool_),
        ),
        policy=ActorCriticPolicy(seen, done, lambda _: 1e-3, net_arch=list(HIDDEN)),
        batch_size=BATCH,
        device="cpu",
    )
    quiet = {"progress_bar": False, "log_interval": 10**9}
    trainer.train(n_epochs=1, **quiet)
    began = time.perf_counter()
    trainer.train(n_epochs=1, **quiet)
    return len(actions) // BATCH * BATCH / (time.perf_counter() - began)


def main() -> None:
    data = np.load(sys.argv[2], allow_pickle=False)
    rate = {"d3rlpy": d3rlpy, "imitation": imitation}[sys.argv[1]](data["observations"], data["actions"])
    print(json.dumps({"samples_per_s": rate}))


if __name__ == "__main__":
    main()
