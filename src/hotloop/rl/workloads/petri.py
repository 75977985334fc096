"""`hotloop train petri`: an agent learns to run a cluster tool, a timed Petri net, without scrapping wafers.

    from hotloop.rl.workloads.petri import Petri, run
    outcome = run(Petri(wafers=4, total_timesteps=200_000))

Three trainers run PPO with the same network and settings. A training batch is one rollout with its update.
Every training batch after the first is one call of the region `training_batch`, so that its breakdown has
nothing of start-up in it.

torch and numba take seconds to load, and `hotloop train --help` only needs the settings. So the modules that
need them, ours included, are imported in functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop import profile, profile_function
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop._util.files import write_atomically
from hotloop.rl.workloads.outcome import NO_AGENT, Note, Outcome

if TYPE_CHECKING:
    from hotloop.rl.envs.petri.net import Net

Policy = Callable[[NDArray[np.float32], NDArray[np.bool_]], NDArray[np.int64]]
"""Observations and action masks -> actions."""
AroundBatch = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a measured training batch runs."""

WARM_UP_BATCHES = 1
JOB_SHOP_SAMPLES = 25_600  # env steps of a training batch on a job shop, where the shop is not too large
JOB_SHOP_BATCHES = 150

_training_batch = profile("training_batch", "other")
_evaluate = profile("evaluate")


@dataclass(frozen=True)
class Petri:
    """Train an agent on a semiconductor cluster tool, a Petri net: PPO with action masks."""

    total_timesteps: int = 200_000
    """Env steps to train for, rounded up to whole training batches."""
    batches: int | None = None
    """Train for this many training batches instead, plus one to warm up; 5 with --breakdown and --compare."""
    wafers: int = 4
    """Wafers to process in an episode."""
    net: Path | None = None
    """File with another net to train on, with our PPO: PNML, or a job shop in the standard text format."""
    instance: str = ""
    """Name of the job shop in a file with several."""
    schedule: Path | None = None
    """CSV file for the agent's best schedule of a job shop: when each operation begins, on which machine."""
    turbo: bool = True
    """Use the compiled simulator instead of the plain one in numpy; observations and rewards are the same."""
    trainer: Literal["hotloop", "torchrl", "sb3"] = "hotloop"
    """Our PPO, TorchRL's collector and loss, or MaskablePPO of sb3-contrib."""
    net_arch: tuple[int, ...] = (64, 64)
    """Hidden layer widths of the actor and of the critic."""
    n_envs: int = 16
    """Number of cluster tools run in parallel."""
    n_steps: int = 128
    """Length of a rollout on each tool."""
    n_epochs: int = 4
    """Passes over a rollout."""
    batch_size: int = 512
    """Samples of one gradient step; must divide n_envs * n_steps."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    anneal_lr: bool = False
    """Decrease the learning rate linearly to 0 over the run, with our PPO."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_range: float = 0.2
    """How far the probability ratio may leave 1 before its gradient is cut."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    anneal_ent_coef: bool = False
    """Decrease ent_coef linearly to 0 over the run, with our PPO."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Learner of our PPO: one kernel for the whole update, or PyTorch; `auto` times both."""
    seed: int = 0
    """Same seed and settings, same agent."""
    on: str = ""
    """Ray cluster whose nodes train, with our PPO: ray, or ray://HOST:PORT; empty: this computer."""
    learners: int = 1
    """With `on`: learner processes, each with its share of the tools; same numbers as one, up to rounding."""
    checkpoint: Path | None = None
    """File to save the agent to, with our PPO; also written on Ctrl-C."""
    checkpoint_every_steps: int = 50_000
    """Env steps between two saves; on Ray, training goes on from the last one when a node is lost."""
    resume: bool = False
    """Continue from the checkpoint."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard, with our PPO."""

    @property
    def samples(self) -> int:
        """Env steps of a training batch, all tools together."""
        return self.n_envs * self.n_steps

    @property
    def all_batches(self) -> int:
        """Training batches of the whole run, the one to warm up included."""
        return self.batches + WARM_UP_BATCHES if self.batches else -(-self.total_timesteps // self.samples)

    @property
    def updates_per_batch(self) -> int:
        """Gradient steps of a training batch."""
        return self.n_epochs * (self.samples // self.batch_size)


def check(config: Petri) -> None:
    """Raise HotloopError for the first invalid setting, or a checkpoint that does not fit them."""
    from hotloop.rl.train import runs
    from hotloop.rl.train.ppo import check_config, saved_run

    runs.check_at_least(config, 1, "wafers", "n_envs", "n_steps", "learners")
    if config.total_timesteps < 1 if config.batches is None else config.batches < 1:
        raise HotloopError(
            f"total_timesteps={config.total_timesteps} and batches={config.batches} leave nothing to train; "
            "set one of them to at least 1."
        )
    if config.net is not None and config.trainer != "hotloop":
        raise HotloopError(f"net={config.net} needs trainer='hotloop', not {config.trainer!r}; change one.")
    if config.schedule is not None and not is_job_shop(config):
        raise HotloopError(
            f"schedule={config.schedule} is written for job shops; set net to a text file with one."
        )
    if config.schedule is not None and not config.schedule.parent.is_dir():
        raise HotloopError(
            f"schedule={config.schedule}: there is no folder {config.schedule.parent}; make it."
        )
    if config.instance and config.net is None:
        raise HotloopError(f"instance={config.instance!r} needs a file with job shops; set net to its path.")
    saves = config.checkpoint is not None or config.resume or config.tensorboard_log is not None
    if config.trainer != "hotloop" and saves:
        raise HotloopError(
            f"trainer={config.trainer!r} writes no checkpoints and no TensorBoard log; leave out checkpoint, "
            "resume and tensorboard_log, or use trainer='hotloop'."
        )
    if config.trainer != "hotloop" and (config.anneal_lr or config.anneal_ent_coef):
        raise HotloopError(
            f"trainer={config.trainer!r} anneals nothing here; leave out anneal_lr and anneal_ent_coef, "
            "or use trainer='hotloop'."
        )
    _check_ray(config)
    ppo_config = _ppo_config(config)  # reads the net
    check_config(ppo_config)  # the other trainers take the same settings
    if config.trainer == "torchrl":
        require_extra("torchrl", "torchrl")
    elif config.trainer == "sb3":
        require_extra("sb3_contrib", "sb3")
    elif config.resume:
        saved_run(ppo_config)


def _check_ray(config: Petri) -> None:
    if not config.on:
        if config.learners > 1:
            raise HotloopError(
                f"learners={config.learners} needs a Ray cluster; set on to ray, or learners to 1."
            )
        return
    from hotloop._util.ray_cluster import address_of

    address_of(config.on)
    if config.trainer != "hotloop":
        raise HotloopError(f"on={config.on!r} needs trainer='hotloop', not {config.trainer!r}; change one.")
    if config.learners > 1 and config.learner not in ("auto", "torch"):
        raise HotloopError(
            f"learner={config.learner!r} learns in one process; with learners={config.learners} use 'torch'."
        )
    if config.learners > config.n_envs:
        raise HotloopError(
            f"learners={config.learners} is more than n_envs={config.n_envs}: each steps some of the tools."
        )
    require_extra("ray", "ray")


def read_net(config: Petri) -> Net | None:
    """The net of the file that the settings name; None: the cluster tool."""
    from hotloop.rl.envs.petri.job_shop_files import read_job_shop
    from hotloop.rl.envs.petri.pnml import read_pnml

    if config.net is None:
        return None
    if config.net.suffix.lower() in (".pnml", ".xml"):
        return read_pnml(config.net)
    return read_job_shop(config.net, config.instance or None)


def is_job_shop(config: Petri) -> bool:
    """Whether the file holds a job shop; its name decides."""
    return config.net is not None and config.net.suffix.lower() not in (".pnml", ".xml")


def job_shop_settings(config: Petri) -> dict[str, Any]:
    """Settings to train on the job shop of a file, by the number of its operations.

    A rollout is one episode of each shop. The entropy bonus begins large and ends at 0: with a constant
    small one, the policy settles on one schedule after a third of the run.
    """
    net = read_net(config)
    assert net is not None
    operations = len(net.transitions) // 2  # each has a start and an end
    n_envs = max(16, min(256, JOB_SHOP_SAMPLES // operations // 8 * 8))
    return {
        "total_timesteps": JOB_SHOP_BATCHES * n_envs * operations,
        "learner": "fused",
        "n_envs": n_envs,
        "n_steps": operations,
        "batch_size": n_envs // 8 * operations,
        "learning_rate": 1e-3,
        "anneal_lr": True,
        "gamma": 1.0,
        "gae_lambda": 0.99,
        "ent_coef": 0.2,
        "anneal_ent_coef": True,
    }


def _env_name(config: Petri) -> str:
    """Name of the environment in a checkpoint; one of another environment is refused."""
    net = read_net(config)
    if net is None:
        return f"Petri(wafers={config.wafers}, turbo={config.turbo})"
    size = f"places={len(net.places)}, transitions={len(net.transitions)}"
    return f"Petri(net={net.name}, {size}, turbo={config.turbo})"


def make_envs(
    config: Petri, autoreset_mode: str = "SameStep", copy: bool = False, *, net: Net | None = None
) -> Any:
    """The cluster tools, or other nets, as one vector env; `net`, if its file was read already."""
    from hotloop.rl.envs.petri.dispatching import DispatchVectorEnv
    from hotloop.rl.envs.petri.env import PetriVectorEnv

    net = net or read_net(config)
    if net is not None and is_job_shop(config):
        return DispatchVectorEnv(config.n_envs, net=net, autoreset_mode=autoreset_mode, copy=copy)
    if net is not None:
        return PetriVectorEnv(
            config.n_envs, net=net, turbo=config.turbo, autoreset_mode=autoreset_mode, copy=copy
        )
    return PetriVectorEnv(
        config.n_envs, wafers=config.wafers, turbo=config.turbo, autoreset_mode=autoreset_mode, copy=copy
    )


def make_network(config: Petri, observation: int, actions: int) -> Any:
    """The network of our PPO and of TorchRL; its weights follow from the seed. sb3 makes its own."""
    import torch

    from hotloop.rl.train.networks.mlp import ActorCritic

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ActorCritic(observation, actions, config.net_arch)


def prepare(config: Petri) -> None:
    """Compile the kernels before anything is timed."""
    from hotloop.rl.train.make_envs import compile_kernels

    if config.trainer == "hotloop":
        compile_kernels(make_envs(config)).close()


# ---- training


def run(
    config: Petri, note: Note | None = None, quiet: bool = False, around: AroundBatch | None = None
) -> Outcome:
    """Train; each training batch after the first runs inside `around()`, by default the region."""
    check(config)
    around = around or (lambda: _training_batch)
    if config.trainer == "torchrl":
        return _train_torchrl(config, around, quiet)
    if config.trainer == "sb3":
        return _train_sb3(config, around, quiet)
    return _train_ppo(config, note, quiet, around)


class _BatchContexts:
    """Enters `around()` for each training batch after the first, in a loop that only calls `next_batch`."""

    def __init__(self, around: AroundBatch, batches: int):
        self._around, self._left = around, batches
        self._open: AbstractContextManager[Any] = nullcontext()

    def next_batch(self, *_: Any) -> None:
        self.close()
        self._left -= 1
        if self._left > 0:
            self._open = self._around()
            self._open.__enter__()

    def close(self) -> None:
        self._open.__exit__(None, None, None)
        self._open = nullcontext()


def _ppo_settings(config: Petri) -> dict[str, Any]:
    """Settings that our PPO and MaskablePPO take under the same name."""
    names = (
        "n_steps", "n_epochs", "batch_size", "learning_rate", "gamma", "gae_lambda", "clip_range", "ent_coef",
        "vf_coef", "max_grad_norm",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def _ppo_config(config: Petri, quiet: bool = True) -> Any:
    from hotloop.rl.train.ppo import PPOConfig

    return PPOConfig(
        env=_env_name(config),
        total_timesteps=config.all_batches * config.samples,
        seed=config.seed,
        n_envs=config.n_envs,
        net_arch=config.net_arch,
        anneal_lr=config.anneal_lr,
        anneal_ent_coef=config.anneal_ent_coef,
        learner=config.learner,
        checkpoint=config.checkpoint,
        checkpoint_every_steps=config.checkpoint_every_steps,
        resume=config.resume,
        tensorboard_log=config.tensorboard_log,
        quiet=quiet,
        **_ppo_settings(config),
    )


def _train_ppo(config: Petri, note: Note | None, quiet: bool, around: AroundBatch) -> Outcome:
    from hotloop.rl.train.make_envs import compile_kernels
    from hotloop.rl.train.ppo import train

    settings = _ppo_config(config, quiet)
    if config.on:
        return _train_on_ray(config, settings, note)
    contexts = _BatchContexts(around, config.all_batches)
    try:
        envs = compile_kernels(make_envs(config))
        result = train(settings, envs=envs, after_update=contexts.next_batch, note=note)
    finally:
        contexts.close()
    remarks, stopped_by = _evaluated(lambda: _remarks(config, result.network), result.stopped_by)
    outcome = Outcome.of_run(result, config.checkpoint, (*remarks, f"learner: {result.learner}"))
    return replace(outcome, stopped_by=stopped_by)


def _make_envs_of_rank(config: Petri, net: Net | None, n_envs: int) -> Any:
    from hotloop.rl.train.make_envs import compile_kernels

    return compile_kernels(make_envs(replace(config, n_envs=n_envs), net=net))


def _train_on_ray(config: Petri, settings: Any, note: Note | None) -> Outcome:
    from hotloop.rl.train.ray_learners import train_on_ray

    make = partial(_make_envs_of_rank, config, read_net(config))  # nodes need not have the file
    trained = train_on_ray(settings, make, config.learners, config.on, note=note)
    result = trained.result
    seen, stopped_by = _evaluated(lambda: _remarks(config, result.network), result.stopped_by)
    remarks = [*seen]
    places = len(set(trained.nodes))
    remarks.append(
        f"learners: {config.learners} on {places} node{'s' if places > 1 else ''} of Ray ({result.learner})"
    )
    for loss in trained.losses:
        took = "" if loss.seconds is None else f", after {loss.seconds:.1f} s"
        remarks.append(
            f"lost learner {', '.join(map(str, loss.learners))} at {loss.env_steps:,} env steps; trained "
            f"again from {loss.resumed_at:,}{took}"
        )
    outcome = Outcome.of_run(result, config.checkpoint, tuple(remarks))
    figures = {
        "learners": config.learners,
        "learner_losses": len(trained.losses),
        "env_steps_made_again": trained.repeated_steps,
        "seconds_without_learners": sum(loss.seconds or 0.0 for loss in trained.losses),
    }
    return replace(
        outcome, figures={name: float(value) for name, value in figures.items()}, stopped_by=stopped_by
    )


def _train_torchrl(config: Petri, around: AroundBatch, quiet: bool) -> Outcome:
    require_extra("torchrl", "torchrl")
    from hotloop.rl.workloads.petri_torchrl import train_torchrl

    envs = make_envs(config, autoreset_mode="Disabled", copy=True)
    size, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    network = make_network(config, size, actions)
    outcome = train_torchrl(config, envs, network, around, quiet)
    remarks, stopped_by = _evaluated(lambda: _evaluation(config, greedy_policy(network)), outcome.stopped_by)
    kept = None if stopped_by is None else NO_AGENT.format("torchrl")
    return replace(outcome, remarks=remarks, stopped_by=stopped_by, kept=kept)


def _train_sb3(config: Petri, around: AroundBatch, quiet: bool) -> Outcome:
    require_extra("sb3_contrib", "sb3")
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from hotloop.rl.envs.petri.env import PetriEnv
    from hotloop.rl.train.runs import ProgressLine, StopRequests, sb3_mean_return, torch_threads

    def make() -> Any:
        return Monitor(PetriEnv(wafers=config.wafers, turbo=config.turbo))

    sizes = list(config.net_arch)
    model = MaskablePPO(
        "MlpPolicy",
        DummyVecEnv([make] * config.n_envs),
        policy_kwargs={"net_arch": {"pi": sizes, "vf": sizes}, "activation_fn": torch.nn.Tanh},
        seed=config.seed,
        **_ppo_settings(config),
    )
    line = ProgressLine(config.all_batches * config.samples, quiet=quiet)
    with torch_threads(1), StopRequests() as stop:
        began_s = time.perf_counter()
        for number in range(config.all_batches):
            with around() if number else nullcontext():
                model.learn(
                    config.samples, reset_num_timesteps=number == 0, callback=lambda *_: stop.by is None
                )
            line.update(model.num_timesteps, sb3_mean_return(model))
            if stop.by is not None:
                break
        seconds = time.perf_counter() - began_s
    line.close()

    def act(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.asarray(model.predict(observations, action_masks=masks, deterministic=True)[0])

    monitors: list[Any] = model.env.envs  # type: ignore[union-attr]
    remarks, stopped_by = _evaluated(lambda: _evaluation(config, act), stop.by)
    return Outcome(
        env_steps=model.num_timesteps,
        updates=model._n_updates * -(-config.samples // config.batch_size),
        episodes=sum(len(env.get_episode_rewards()) for env in monitors),
        mean_return=sb3_mean_return(model),
        seconds=seconds,
        stopped_by=stopped_by,
        kept=None if stopped_by is None else NO_AGENT.format("sb3"),
        remarks=remarks,
    )


# ---- evaluation


def _evaluated(
    evaluate: Callable[[], tuple[str, ...]], stopped_by: str | None
) -> tuple[tuple[str, ...], str | None]:
    """The remarks of the evaluation after training, and the signal that ended training or the evaluation."""
    from hotloop.rl.train.runs import FinalEvaluation

    remarks: tuple[str, ...] = ()
    if stopped_by is None:
        with FinalEvaluation() as evaluation:
            remarks = evaluate()
        stopped_by = evaluation.by
    return remarks, stopped_by


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """An episode of the trained agent, always taking the most likely action."""

    wafers_done: int
    scrapped: bool
    clock_s: int
    total_reward: float


def play(config: Petri, policy: Policy, seed: int = 0) -> EpisodeResult:
    """One episode on the compiled simulator."""
    from hotloop.rl.envs.petri.env import PetriVectorEnv
    from hotloop.rl.train.runs import end_if_stopped, torch_threads

    net = read_net(config)
    chosen: dict[str, Any] = {"wafers": config.wafers} if net is None else {"net": net}
    env = PetriVectorEnv(1, autoreset_mode="Disabled", **chosen)
    with _evaluate, torch_threads(1):
        observations, infos = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            end_if_stopped()
            actions = policy(observations, infos["action_mask"])
            observations, rewards, terminated, truncated, infos = env.step(actions)
            total += float(rewards[0])
            over = bool(terminated[0] or truncated[0])
    return EpisodeResult(
        int(infos["wafers_done"][0]), bool(infos["scrapped"][0]), int(infos["clock"][0]), total
    )


@profile_function("shut_down", category="other")
def _remarks(config: Petri, network: Any) -> tuple[str, ...]:
    """What a network trained by our PPO does."""
    if not is_job_shop(config):
        return _evaluation(config, greedy_policy(network))
    if config.batches:
        return ()
    from hotloop.rl.envs.petri.dispatching import shop_of
    from hotloop.rl.workloads.job_shop_play import compare, schedule_table

    net = read_net(config)
    assert net is not None
    lines, best = compare(net, network, config.seed)
    if config.schedule is not None:
        try:
            write_atomically(config.schedule, schedule_table(shop_of(net), best))
            lines.append(f"wrote the schedule of {best.makespan_s} s to {config.schedule}")
        except OSError as error:  # training was long: what it reached is still said
            lines.append(f"{config.schedule} cannot be written ({error.strerror}): the schedule is lost")
    return tuple(lines)


@profile_function("shut_down", category="other")
def _evaluation(config: Petri, policy: Policy) -> tuple[str, ...]:
    """A remark on how the trained agent does; none after a measurement of a few batches."""
    if config.batches:
        return ()
    seen = play(config, policy)
    net = read_net(config)
    if net is not None:
        goal = sum(place.goal for place in net.places)
        done = f"{seen.wafers_done} of {goal} goal tokens" if goal else f"a return of {seen.total_reward:.2f}"
        return (f"the agent reaches {done} in {seen.clock_s} s",)
    scrap = "one scrapped" if seen.scrapped else "none scrapped"
    return (f"the agent finishes {seen.wafers_done} of {config.wafers} wafers in {seen.clock_s} s, {scrap}",)


def greedy_policy(network: Any) -> Policy:
    """The most likely allowed actions of an `ActorCritic`."""
    import torch

    def act(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations))
            logits = torch.where(torch.from_numpy(masks), logits, -torch.inf)
            chosen: NDArray[np.int64] = logits.argmax(dim=1).numpy()
        return chosen

    return act
