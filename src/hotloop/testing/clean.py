"""Healthy runs, as captures: nothing above low impact may be recommended for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.capture.model import Capture
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.testing.planted import GIB, MS, TORCH, US, collect, learn


def clean_ppo() -> Capture:
    """Synchronous PPO: 32 envs in one call, rollouts of 128, 4 epochs of 4 minibatches."""
    rollout = {
        "policy_forward": Spec(128 * 15, 300 * US),
        "env_step": Spec(128 * 15, 900 * US),
        "store": Spec(128 * 15, 20 * US),
    }
    loop = {
        "rollout": Spec(15, 100 * US, rollout),
        "advantage": Spec(15, 2 * MS),
        **learn(240, 3.0),
        "log": Spec(15, 300 * US),
    }
    return make_capture(loop, env_steps=32 * 128 * 15, updates=240, episodes=200, facts=TORCH, rss=GIB)


def clean_ppo_that_learns() -> Capture:
    """The same with names of its own; episodes get longer, which is no defect."""
    loop = {
        "act": Spec(2000, 250 * US),
        "simulate": Spec(2000, 700 * US),
        "gae": Spec(16, 3 * MS),
        "minibatch": Spec(256, 0, {"forward": Spec(256, 2 * MS), "backprop": Spec(256, 4 * MS)}),
    }
    done: dict[str, Any] = {"env_steps": 32 * 2000, "updates": 256, "episodes": 400}
    return make_capture(loop, **done, length_growth=1.0, facts=TORCH, noise=0.15, seed=3)


def clean_dqn() -> Capture:
    """DQN with 16 envs, one write and at most one update for each turn."""
    loop = {
        **collect(3000, policy_us=150, env_us=500),
        "replay_push": Spec(3000, 15 * US),
        "replay_sample": Spec(750, 120 * US),
        **learn(750),
        "evaluate": Spec(3, 20 * MS),
    }
    return make_capture(loop, env_steps=16 * 3000, updates=750, episodes=120, facts=TORCH, rss=(GIB, 2 * GIB))


def clean_sac() -> Capture:
    """SAC with one env and one update for each step: slow by design, the learner is the work."""
    loop = {
        "actor": Spec(1500, 150 * US),
        "sim_step": Spec(1500, 200 * US),
        "buffer_add": Spec(1500, 8 * US),
        "update": Spec(1500, 50 * US, {"critic_loss": Spec(1500, MS), "backward": Spec(1500, 2 * MS)}),
    }
    return make_capture(loop, env_steps=1500, updates=1500, facts=TORCH, noise=0.1)


def clean_pipeline() -> Capture:
    """Collectors and a learner side by side, both busy, one thread for arithmetic each."""
    work = {
        "env_step": Spec(4000, 0.8 * MS),
        "policy_forward": Spec(4000, 0.25 * MS),
        "ipc_send": Spec(40, 0.5 * MS),
    }
    collector = ThreadSpec(work, env_steps=16 * 4000)
    processes = [ProcessSpec([collector], label=f"collector-{i}") for i in range(6)]
    loop = {"queue_wait": Spec(400, 0.9 * MS), "replay_push": Spec(400, 0.4 * MS), **learn(1300)}
    return make_capture(loop, updates=1300, processes=processes, facts=TORCH, cpu=0.9)


CLEAN: tuple[Callable[[], Capture], ...] = (
    clean_ppo,
    clean_ppo_that_learns,
    clean_dqn,
    clean_sac,
    clean_pipeline,
)
