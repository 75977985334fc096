"""Learning curves of our trainers and Stable-Baselines3: same algorithm, settings, first weights and seeds.

    python benchmarks/learning_curves.py run [--only Snake] [--seeds 10]   # appends to learning_curves.jsonl
    python benchmarks/learning_curves.py table                             # final returns and verdicts
    python benchmarks/learning_curves.py draw -o docs/learning-curves.png

A run is one line of the results file: mean returns of greedy episodes at fixed env steps. Runs that are in
the file are not made again, so `run` can be stopped and started. One thread each.

Equal on both sides, all in TASKS: the settings, the network and its first weights (ours are copied into
Stable-Baselines3's policy), the optimizer (Adam, its epsilon), the seeds of the environments, and the
evaluation, which is one function. What cannot be set equal:

- the random numbers that choose actions and batches, so equal seeds are not equal runs;
- SAC's log probability of actions close to the bounds: Stable-Baselines3 adds 1e-6 inside the logarithm;
- DQN's first `learning_starts` actions: uniform there, by the schedule of epsilon here (0.95 at their end).

Double Q-learning, which Stable-Baselines3 does not have, is off. `hotloop boost` is not used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import nn

from hotloop.analysis.ranking import LearningVerdict, compare_returns
from hotloop.rl.envs.snake.env import SnakeEnv, SnakeVectorEnv
from hotloop.rl.train import dqn, ppo, sac
from hotloop.rl.train.make_envs import evaluate_policy

RESULTS = Path(__file__).with_suffix(".jsonl")
EVAL_SEED = 1_000_000  # away from the seeds of training
FINAL = 2  # evaluations at the end whose mean is the final return
SIDES = {"sb3": "Stable-Baselines3", "hotloop": "hotloop"}
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}

PPO_SETTINGS: dict[str, Any] = {  # the defaults, with the rollout of 2048 env steps spread over 8 envs
    "learning_rate": 3e-4, "n_steps": 256, "batch_size": 64, "n_epochs": 10, "gamma": 0.99,
    "gae_lambda": 0.95, "clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.0, "vf_coef": 0.5,
    "max_grad_norm": 0.5, "normalize_advantage": True, "target_kl": None,
}  # fmt: skip

Act: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Observations [rows, ...] -> actions without exploration, as the environment takes them."""
Curve: TypeAlias = list[tuple[int, float]]
"""Env steps and mean return of each evaluation."""


@dataclass(frozen=True)
class Task:
    """An environment, an algorithm and its settings, in Stable-Baselines3's names."""

    algorithm: str
    total_timesteps: int
    eval_every_steps: int
    settings: dict[str, Any]
    net_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    adam_eps: float = 1e-8
    n_envs: int = 1
    n_eval_episodes: int = 20
    repeat: int = 1
    """Env steps for which each action is repeated; total_timesteps counts actions."""
    own: dict[str, Any] = field(default_factory=dict)
    """Settings of ours that say what Stable-Baselines3 always does."""


TASKS = {
    "CartPole-v1": Task("PPO", 24_576, 2_048, PPO_SETTINGS, adam_eps=1e-5, n_envs=8),
    "Acrobot-v1": Task("PPO", 81_920, 4_096, PPO_SETTINGS, adam_eps=1e-5, n_envs=8),
    "Pendulum-v1": Task(
        "SAC", 6_000, 500, activation="relu",
        settings={
            "learning_rate": 2e-3, "buffer_size": 50_000, "learning_starts": 500, "batch_size": 128,
            "tau": 0.01, "gamma": 0.98, "train_freq": 1, "gradient_steps": 1, "ent_coef": "auto",
            "target_entropy": "auto",
        },
        own={"random_steps": 500},
    ),
    "MountainCarContinuous-v0": Task(
        "SAC", 4_000, 500, activation="relu", repeat=8,
        settings={
            "learning_rate": 1e-3, "buffer_size": 50_000, "learning_starts": 1_000, "batch_size": 128,
            "tau": 0.005, "gamma": 0.99, "train_freq": 1, "gradient_steps": 1, "ent_coef": "auto",
            "target_entropy": "auto",
        },
        own={"random_steps": 1_000},
    ),
    "Snake": Task(
        "DQN", 40_960, 4_096, activation="relu", net_arch=(128, 128), n_eval_episodes=64,
        settings={
            "learning_rate": 1e-3, "buffer_size": 50_000, "learning_starts": 512, "batch_size": 64,
            "tau": 1.0, "gamma": 0.99, "train_freq": 4, "gradient_steps": 1, "target_update_interval": 1_024,
            "exploration_fraction": 5 / 6, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.01,
            "max_grad_norm": 10.0,
        },
        own={"double": False, "loss": "huber"},
    ),
}  # fmt: skip


# ---- environments and evaluation


class Repeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action. Noise that changes at every step hardly ever drives the car up the mountain."""

    def __init__(self, env: gymnasium.Env[Any, Any], times: int):
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make_env(name: str) -> Any:
    if name == "Snake":
        return SnakeEnv(flood_fill="compiled")
    env = gymnasium.make(name)
    return Repeat(env, TASKS[name].repeat) if TASKS[name].repeat > 1 else env


def make_envs(name: str, n_envs: int) -> Any:
    """A vector env for our trainers and for evaluations."""
    if name == "Snake":
        return SnakeVectorEnv(
            n_envs, flood_fill="compiled", autoreset_mode=AutoresetMode.SAME_STEP, copy=False
        )
    return SyncVectorEnv(
        [lambda: make_env(name)] * n_envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP
    )


class Evaluation:
    """Plays the same episodes at the first opportunity after each multiple of eval_every_steps."""

    def __init__(self, name: str):
        self.task, self.curve = TASKS[name], Curve()
        self.envs = make_envs(name, self.task.n_eval_episodes)

    def __call__(self, act: Act, env_steps: int) -> float | None:
        every = self.task.eval_every_steps
        if self.curve and env_steps // every == self.curve[-1][0] // every:
            return None
        returns, _ = evaluate_policy(
            lambda observations, _: act(observations), self.envs, self.task.n_eval_episodes, EVAL_SEED
        )
        self.curve.append((env_steps, float(returns.mean())))
        return self.curve[-1][1]


# ---- our trainers


def train_hotloop(name: str, seed: int) -> Curve:
    task, evaluation = TASKS[name], Evaluation(name)
    envs = make_envs(name, task.n_envs)
    if task.algorithm == "SAC":
        train_sac(sac_config(name, seed), envs, evaluation)
        return evaluation.curve

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            out = network(torch.from_numpy(np.ascontiguousarray(observations)))
            return np.asarray((out[0] if task.algorithm == "PPO" else out).argmax(dim=1).numpy())

    def after(env_steps: int, _: dict[str, float]) -> None:
        evaluation(act, env_steps)

    network: nn.Module
    train: Callable[[], Any]
    if task.algorithm == "PPO":
        of_ppo = ppo_config(name, seed)
        network = ppo.make_network(of_ppo, envs)
        train = partial(ppo.train, of_ppo, envs=envs, network=network, after_update=after)
    else:
        of_dqn = dqn_config(name, seed)
        network = dqn.make_network(of_dqn, envs)
        train = partial(dqn.train, of_dqn, envs=envs, network=network, after_record=after)
    evaluation(act, 0)
    check_complete(train())
    evaluation(act, task.total_timesteps)
    return evaluation.curve


def train_sac(config: sac.SACConfig, envs: Any, evaluation: Evaluation) -> None:
    low, high = envs.single_action_space.low, envs.single_action_space.high
    steps = iter(range(0, config.total_timesteps + 1, config.eval_every_steps))

    def evaluate(policy: sac.Policy) -> float:
        def act(observations: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(low + 0.5 * (policy(observations) + 1.0) * (high - low))

        found = evaluation(act, next(steps))
        assert found is not None
        return found

    check_complete(sac.train(config, envs=envs, evaluate=evaluate))


def check_complete(result: Any) -> None:
    """Our trainers return what they have when they are stopped; that is no run for the results."""
    if result.stopped_by is not None:
        raise SystemExit(f"stopped by {result.stopped_by}")


def common(name: str, seed: int) -> dict[str, Any]:
    task = TASKS[name]
    return {
        **task.settings, **task.own, "env": name, "seed": seed, "total_timesteps": task.total_timesteps,
        "n_envs": task.n_envs, "net_arch": task.net_arch, "activation": task.activation, "learner": "fused",
        "quiet": True,
    }  # fmt: skip


def ppo_config(name: str, seed: int) -> ppo.PPOConfig:
    return ppo.PPOConfig(**common(name, seed), adam_eps=TASKS[name].adam_eps)


def dqn_config(name: str, seed: int) -> dqn.DQNConfig:
    return dqn.DQNConfig(**common(name, seed), adam_eps=TASKS[name].adam_eps)


def sac_config(name: str, seed: int) -> sac.SACConfig:
    return sac.SACConfig(**common(name, seed), eval_every_steps=TASKS[name].eval_every_steps, keep_best=False)


# ---- Stable-Baselines3


def train_sb3(name: str, seed: int) -> Curve:
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    task, evaluation = TASKS[name], Evaluation(name)
    widths = list(task.net_arch)
    model = getattr(stable_baselines3, task.algorithm)(
        "MlpPolicy",
        DummyVecEnv([lambda: make_env(name)] * task.n_envs),
        policy_kwargs={
            "net_arch": {"pi": widths, "vf": widths} if task.algorithm == "PPO" else widths,
            "activation_fn": ACTIVATIONS[task.activation],
            "optimizer_class": torch.optim.Adam,
            "optimizer_kwargs": {"eps": task.adam_eps},
        },
        seed=seed,
        device="cpu",
        **task.settings,
    )
    copy_first_weights(name, seed, model)

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(model.predict(observations, deterministic=True)[0])

    class Evaluate(BaseCallback):
        def _on_rollout_start(self) -> None:  # after the updates that were due
            evaluation(act, self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    model.learn(task.total_timesteps, callback=Evaluate())
    evaluation(act, task.total_timesteps)
    return evaluation.curve


def copy_first_weights(name: str, seed: int, model: Any) -> None:
    """Give Stable-Baselines3's policy the weights with which our trainer begins."""
    task, policy = TASKS[name], model.policy
    envs = make_envs(name, 1)
    pairs: list[tuple[nn.Module, list[nn.Module]]]
    if task.algorithm == "PPO":
        ours = ppo.make_network(ppo_config(name, seed), envs)
        extractor = policy.mlp_extractor
        pairs = [
            (ours.actor, [extractor.policy_net, policy.action_net]),
            (ours.critic, [extractor.value_net, policy.value_net]),
        ]
    elif task.algorithm == "DQN":
        q_network = dqn.make_network(dqn_config(name, seed), envs)
        pairs = [(q_network, [policy.q_net]), (q_network, [policy.q_net_target])]
    else:
        size, actions = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
        actor, critics = sac.make_networks(sac_config(name, seed), size, actions)
        last = [layer for layer in actor.layers if isinstance(layer, nn.Linear)][-1]
        for head, rows in (
            (policy.actor.mu, slice(0, actions)),
            (policy.actor.log_std, slice(actions, None)),
        ):
            head.load_state_dict({"weight": last.weight[rows], "bias": last.bias[rows]})
        pairs = [(actor.layers[:-1], [policy.actor.latent_pi])]
        for critic in (policy.critic, policy.critic_target):
            pairs += [(critics.first, [critic.qf0]), (critics.second, [critic.qf1])]
    for source, targets in pairs:
        theirs = [layer for target in targets for layer in linear_layers(target)]
        for layer, other in zip(linear_layers(source), theirs, strict=True):
            other.load_state_dict(layer.state_dict())
    envs.close()


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


# ---- results

TRAIN = {"sb3": train_sb3, "hotloop": train_hotloop}


def read_results(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The runs of a results file by task, side and seed."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["task"], row["side"], row["seed"]): row for row in rows}


def run(names: list[str], sides: list[str], seeds: int, path: Path) -> None:
    """Make the runs that are not in the file yet, both sides in turn."""
    torch.set_num_threads(1)
    for seed in range(seeds):
        for name in names:
            for side in sides:
                if (name, side, seed) in read_results(path):
                    continue
                curve = TRAIN[side](name, seed)
                row = {
                    "task": name,
                    "side": side,
                    "seed": seed,
                    "env_steps": [steps for steps, _ in curve],
                    "returns": [round(value, 2) for _, value in curve],
                }
                with path.open("a") as file:
                    print(json.dumps(row), file=file)
                print(f"{name}, {side}, seed {seed}: {row['returns']}", file=sys.stderr, flush=True)


def curves(rows: dict[tuple[str, str, int], dict[str, Any]], name: str) -> dict[str, NDArray[np.float64]]:
    """Returns [seeds, evaluations] of each side, for the seeds that both have."""
    seeds = [{seed for task, one, seed in rows if (task, one) == (name, side)} for side in SIDES]
    both = sorted(seeds[0] & seeds[1])
    return {side: np.array([rows[name, side, seed]["returns"] for seed in both]) for side in SIDES}


def verdict(found: dict[str, NDArray[np.float64]], last: int | None) -> tuple[LearningVerdict, float, float]:
    """Whether ours is worse at a margin of 10 %, and both means; of the `last` evaluations, or of all."""
    ends = {side: rows[:, -last:].mean(axis=1) if last else rows.mean(axis=1) for side, rows in found.items()}
    pairs = list(zip(ends["sb3"].tolist(), ends["hotloop"].tolist(), strict=True))
    return compare_returns(pairs, tolerance=0.1), float(ends["sb3"].mean()), float(ends["hotloop"].mean())


def table(names: list[str], path: Path) -> None:
    rows = read_results(path)
    print("| | seeds | Stable-Baselines3 | hotloop | difference | verdict | mean of the whole curve |")
    print("| --- | ---: | ---: | ---: | --- | --- | --- |")
    for name in names:
        found = curves(rows, name)
        said, theirs, ours = verdict(found, FINAL)
        whole = verdict(found, None)[0]
        cells = [
            f"{TASKS[name].algorithm}, {name}", str(said.pairs), f"{theirs:.1f}", f"{ours:.1f}",
            said.summary.partition(": ")[2], said.word.replace("_", " "), whole.summary,
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |")


def draw(names: list[str], path: Path, picture: Path) -> None:
    """Mean over seeds and 95 % confidence band of the mean (Student's t), one panel for each task."""
    from matplotlib import pyplot
    from scipy.stats import t

    rows = read_results(path)
    figure, places = pyplot.subplots(1, len(names), figsize=(3.6 * len(names), 3.4), squeeze=False)
    for place, name in zip(places[0], names, strict=True):
        task, found = TASKS[name], curves(rows, name)
        for side, colour in (("sb3", "#495057"), ("hotloop", "#d9480f")):
            values = found[side]
            n = len(values)
            steps = np.array(rows[name, side, 0]["env_steps"]) * task.repeat
            mean = values.mean(axis=0)
            half = t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else 0.0 * mean
            place.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
            place.plot(steps, mean, color=colour, linewidth=1.8, label=SIDES[side])
        place.set(title=f"{task.algorithm}, {name}, {n} seeds", xlabel="env steps")
        place.title.set_fontsize(9)
        place.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    places[0][0].set_ylabel("mean return, greedy")
    places[0][0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table", "draw"))
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("-o", "--picture", type=Path, default=Path("learning-curves.png"))
    given = parser.parse_args()
    if given.what == "run":
        run(given.only, given.sides, given.seeds, given.results)
    elif given.what == "table":
        table(given.only, given.results)
    else:
        draw(given.only, given.results, given.picture)


if __name__ == "__main__":
    main()
