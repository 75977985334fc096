"""benchmarks/learning_curves.py: both sides start alike, runs are made once, table and picture come out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from benchmarks import learning_curves
from benchmarks.learning_curves import SIDES, TASKS, copy_first_weights, make_envs

from hotloop.rl.train import dqn, sac


def test_runs_are_made_once_and_become_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = dataclasses.replace(
        TASKS["CartPole-v1"],
        total_timesteps=128,
        eval_every_steps=64,
        n_eval_episodes=2,
        n_envs=2,
        settings=TASKS["CartPole-v1"].settings | {"n_steps": 32, "n_epochs": 1},
    )
    monkeypatch.setitem(TASKS, "CartPole-v1", short)
    results, picture, names = tmp_path / "runs.jsonl", tmp_path / "curves.png", ["CartPole-v1"]
    threads = torch.get_num_threads()
    try:
        for _ in range(2):
            learning_curves.run(names, list(SIDES), 1, results)
    finally:
        torch.set_num_threads(threads)
    theirs, ours = (json.loads(line) for line in results.read_text().splitlines())
    assert (theirs["side"], ours["side"]) == ("sb3", "hotloop")
    assert theirs["env_steps"] == ours["env_steps"] == [0, 64, 128]
    assert theirs["returns"][0] == ours["returns"][0]  # the same weights at the start
    learning_curves.table(names, results)
    learning_curves.draw(names, results, picture)
    assert "| PPO, CartPole-v1 | 1 |" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["Pendulum-v1", "Snake"])
def test_sac_and_dqn_start_with_our_weights(name: str) -> None:
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv

    task = TASKS[name]
    model: Any = getattr(stable_baselines3, task.algorithm)(
        "MlpPolicy",
        DummyVecEnv([lambda: learning_curves.make_env(name)]),
        policy_kwargs={"net_arch": list(task.net_arch), "activation_fn": torch.nn.ReLU},
        buffer_size=100,
        device="cpu",
    )
    copy_first_weights(name, 7, model)
    envs = make_envs(name, 3)
    seen = torch.from_numpy(np.array(envs.reset(seed=1)[0]))
    with torch.no_grad():
        if task.algorithm == "DQN":
            ours = dqn.make_network(learning_curves.dqn_config(name, 7), envs)
            assert torch.equal(ours(seen), model.q_net(seen))
            assert torch.equal(ours(seen), model.q_net_target(seen))
            return
        config = learning_curves.sac_config(name, 7)
        actor, critics = sac.make_networks(config, seen.shape[1], 1)
        actions = actor.greedy_actions(seen)
        assert torch.allclose(actions, model.actor(seen, deterministic=True), atol=1e-6)
        assert torch.equal(actor(seen)[1], model.actor.get_action_dist_params(seen)[1])
        for critic in (model.critic, model.critic_target):
            assert torch.allclose(
                critics(seen, actions), torch.cat(critic(seen, actions), dim=1).t(), atol=1e-6
            )
