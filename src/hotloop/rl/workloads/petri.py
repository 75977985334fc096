"""`hotloop train petri`: an agent that runs a cluster tool, a timed Petri net, without scrapping wafers.

    from hotloop.rl.workloads.petri import Petri, run
    outcome = run(Petri(wafers=4, timesteps=200_000))

PPO by three trainers with the same network and the same settings. Every batch after the first is one call
of the region `training_batch`, so that a breakdown of a batch has nothing of start-up in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.warming import warm

Trainer = Literal["hotloop", "torchrl", "sb3"]
Best = Callable[[NDArray[np.float32], NDArray[np.bool_]], NDArray[np.int64]]

DISCOUNT, TRACE, CLIP, VALUE_WEIGHT, LARGEST_NORM, ADAM_EPSILON = 0.99, 0.95, 0.2, 0.5, 0.5, 1e-5
WARM_UP_BATCHES = 1

_batch = profile("training_batch", "other")
_evaluate = profile("evaluate")


@dataclass(frozen=True)
class Petri:
    """Train an agent on a semiconductor cluster tool, a Petri net: PPO with action masks."""

    timesteps: int = 200_000
    """Env steps of the training; rounded up to whole batches."""
    batches: int = 0
    """Train for so many batches instead, after one to warm up; 5 with --breakdown and --compare."""
    wafers: int = 4
    """Wafers to process in an episode."""
    turbo: bool = True
    """The compiled simulator, or the plain one in numpy; what the agent sees and earns is the same."""
    trainer: Trainer = "hotloop"
    """Ours, TorchRL's collector and loss, or MaskablePPO of sb3-contrib; same network, same settings."""
    n_hidden: int = 64
    """Units of a hidden layer of actor and critic."""
    n_layer: int = 2
    """Hidden layers."""
    frames_per_batch: int = 2048
    """Env steps, of all environments together, between two rounds of learning."""
    envs: int = 16
    """Cluster tools run at the same time."""
    epochs: int = 4
    """Passes over a batch."""
    minibatch: int = 512
    """Samples of a gradient step."""
    learning_rate: float = 1e-3
    """Of Adam."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Of our trainer: loss, gradient and Adam in one kernel, or one by one in torch."""
    seed: int = 0
    """Same seed, same settings: same agent."""
    checkpoint: Path | None = None
    """Where to keep the agent, with our trainer; also written on Ctrl-C."""
    resume: bool = False
    """Go on from the checkpoint."""
    metrics: Path | None = None
    """Folder for TensorBoard, with our trainer."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of the trained agent, always taking the likeliest action."""

    wafers_done: int
    scrapped: bool
    clock_s: int
    total_reward: float


Measured = Callable[[], AbstractContextManager[Any]]  # what to be inside of during a measured batch


def make_envs(config: Petri, autoreset_mode: str = "SameStep", copy: bool = False) -> Any:
    """The cluster tools as a vector env, as our trainer wants them."""
    from hotloop.rl.envs.petri.env import PetriVectorEnv

    return PetriVectorEnv(
        config.envs, wafers=config.wafers, turbo=config.turbo, autoreset_mode=autoreset_mode, copy=copy
    )


def batches_of(config: Petri) -> int:
    """Batches of the whole training, the one to warm up included."""
    if config.batches:
        return config.batches + WARM_UP_BATCHES
    return -(-config.timesteps // config.frames_per_batch)


def prepare(config: Petri) -> None:
    """Compile the kernels, before anybody looks at the time."""
    if config.trainer == "hotloop":
        warm(make_envs(config)).close()


def run(
    config: Petri, note: Note | None = None, quiet: bool = False, measured: Measured | None = None
) -> Outcome:
    """Train as the config says; each batch after the first inside `measured()`, by default the region."""
    check(config)
    around = measured or (lambda: _batch)
    if config.trainer == "torchrl":
        require_extra("torchrl", "torchrl")
        from hotloop.rl.workloads.petri_torchrl import train

        return train(config, around)
    return _with_sb3(config, around) if config.trainer == "sb3" else _with_ppo(config, note, quiet, around)


def check(config: Petri) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("wafers", "n_hidden", "n_layer", "envs", "epochs", "frames_per_batch"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    if config.batches < 0 or (not config.batches and config.timesteps < 1):
        raise HotloopError(
            f"timesteps={config.timesteps} and batches={config.batches} leave nothing to do; "
            "give one of them, at least 1."
        )
    frames = config.frames_per_batch
    if frames % config.envs or config.minibatch < 2 or frames % config.minibatch:
        raise HotloopError(
            f"frames_per_batch={frames} must be a multiple of envs={config.envs} and of "
            f"minibatch={config.minibatch} (at least 2)."
        )
    kept = config.checkpoint is not None or config.resume or config.metrics is not None
    if config.trainer != "hotloop" and kept:
        raise HotloopError(
            f"trainer={config.trainer!r} keeps no checkpoints and no metrics; leave checkpoint, resume and "
            "metrics out, or use hotloop."
        )


def play(config: Petri, best: Best, seed: int = 0) -> Played:
    """One episode of the agent, on the compiled simulator."""
    from hotloop.rl.envs.petri.env import PetriVectorEnv

    env = PetriVectorEnv(1, wafers=config.wafers, autoreset_mode="Disabled")
    with _evaluate:
        observations, infos = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            actions = best(observations, infos["action_mask"])
            observations, rewards, terminated, truncated, infos = env.step(actions)
            total += float(rewards[0])
            over = bool(terminated[0] or truncated[0])
    return Played(int(infos["wafers_done"][0]), bool(infos["scrapped"][0]), int(infos["clock"][0]), total)


def played_words(config: Petri, best: Best) -> tuple[str, ...]:
    """What the trained agent does with a lot of wafers; nothing after a short measurement."""
    if config.batches:
        return ()
    seen = play(config, best)
    scrap = "one scrapped" if seen.scrapped else "none scrapped"
    return (f"the agent finishes {seen.wafers_done} of {config.wafers} wafers in {seen.clock_s} s, {scrap}",)


def best_of(network: Any) -> Best:
    """The likeliest allowed actions of an `ActorCritic`."""
    import torch

    def best(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations))
            logits = torch.where(torch.from_numpy(masks), logits, -torch.inf)
            chosen: NDArray[np.int64] = logits.argmax(dim=1).numpy()
        return chosen

    return best


def make_network(config: Petri, observation: int, actions: int) -> Any:
    """The network of all trainers but sb3, which makes its own alike; weights follow from the seed."""
    import torch

    from hotloop.rl.train.networks.mlp import ActorCritic

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ActorCritic(observation, actions, (config.n_hidden,) * config.n_layer)


class _Turns:
    """Enters what surrounds a measured batch between two updates of a loop that is not ours."""

    def __init__(self, around: Measured, batches: int):
        self._around, self._left = around, batches
        self._open: AbstractContextManager[Any] = nullcontext()

    def next(self, *_: Any) -> None:
        """A batch has ended; the next one, if there is one, is measured."""
        self.end()
        self._left -= 1
        if self._left > 0:
            self._open = self._around()
            self._open.__enter__()

    def end(self) -> None:
        """Leave what is open."""
        self._open.__exit__(None, None, None)
        self._open = nullcontext()


def _with_ppo(config: Petri, note: Note | None, quiet: bool, around: Measured) -> Outcome:
    from hotloop.rl.train.ppo import PPOConfig, train

    batches = batches_of(config)
    settings = PPOConfig(
        env=f"Petri(wafers={config.wafers}, turbo={config.turbo})",  # a checkpoint of another is refused
        total_timesteps=batches * config.frames_per_batch,
        seed=config.seed,
        n_envs=config.envs,
        n_steps=config.frames_per_batch // config.envs,
        batch_size=config.minibatch,
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        ent_coef=config.entropy_weight,
        gamma=DISCOUNT,
        gae_lambda=TRACE,
        clip_range=CLIP,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=LARGEST_NORM,
        adam_eps=ADAM_EPSILON,
        net_arch=(config.n_hidden,) * config.n_layer,
        learner=config.learner,
        checkpoint=config.checkpoint,
        resume=config.resume,
        tensorboard_log=config.metrics,
        quiet=quiet,
    )
    turns = _Turns(around, batches)
    try:
        done = train(settings, envs=warm(make_envs(config)), after_update=turns.next, note=note)
    finally:
        turns.end()
    words = played_words(config, best_of(done.network)) if done.stopped_by is None else ()
    return Outcome(
        done.env_steps,
        done.updates,
        done.episodes,
        done.mean_return,
        done.seconds,
        done.stopped_by,
        config.checkpoint,
        (*words, f"learner: {done.learner}"),
    )


def _with_sb3(config: Petri, around: Measured) -> Outcome:
    require_extra("sb3_contrib", "sb3")
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from hotloop.rl.envs.petri.env import PetriEnv

    def make() -> Any:
        return Monitor(PetriEnv(wafers=config.wafers, turbo=config.turbo))

    sizes = [config.n_hidden] * config.n_layer
    model = MaskablePPO(
        "MlpPolicy",
        DummyVecEnv([make] * config.envs),
        n_steps=config.frames_per_batch // config.envs,
        batch_size=config.minibatch,
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        ent_coef=config.entropy_weight,
        gamma=DISCOUNT,
        gae_lambda=TRACE,
        clip_range=CLIP,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=LARGEST_NORM,
        policy_kwargs={"net_arch": {"pi": sizes, "vf": sizes}, "activation_fn": torch.nn.Tanh},
        seed=config.seed,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    try:
        for number in range(batches_of(config)):
            with around() if number else nullcontext():
                model.learn(config.frames_per_batch, reset_num_timesteps=number == 0)
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - began_s

    def best(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.asarray(model.predict(observations, action_masks=masks, deterministic=True)[0])

    monitors: list[Any] = model.env.envs  # type: ignore[union-attr]
    recent = list(model.ep_info_buffer or [])
    return Outcome(
        env_steps=model.num_timesteps,
        updates=batches_of(config) * config.epochs * (config.frames_per_batch // config.minibatch),
        episodes=sum(len(env.get_episode_rewards()) for env in monitors),
        mean_return=sum(e["r"] for e in recent) / len(recent) if recent else None,
        seconds=seconds,
        remarks=played_words(config, best),
    )
