"""Soft actor-critic by Stable-Baselines3 with the settings, networks and updates of our own trainer.

The cars drive in separate processes (SubprocVecEnv). What Stable-Baselines3 does not offer is added here: it
starts from the clone instead of random actions, freezes the actor until `actor_learning_starts`, gives the
actor its own learning rate, and adds the anchor's gradient.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.machine.process_memory import largest_memory
from hotloop.rl.envs.track.env import TrackEnv
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import StopRequests, Stopwatch, stop_requested, torch_threads
from hotloop.rl.train.sac import Policy, SACConfig, anchor_loss
from hotloop.rl.workloads.imitate_config import RLResult


def make_car() -> TrackEnv:
    """One car; at module level, so that a worker process can import it."""
    return TrackEnv()


def copy_actor(actor: SquashedActor, theirs: Any) -> None:
    """Copy our actor's weights into theirs; raises HotloopError when the networks differ."""
    mine = [layer for layer in actor.layers if isinstance(layer, nn.Linear)]
    latent = [layer for layer in theirs.latent_pi if isinstance(layer, nn.Linear)]
    same = [tuple(layer.weight.shape) for layer in mine[:-1]] == [tuple(x.weight.shape) for x in latent]
    activations = {type(layer) for layer in theirs.latent_pi if not isinstance(layer, nn.Linear)}
    same = same and activations == {type(layer) for layer in actor.layers if not isinstance(layer, nn.Linear)}
    if not same or theirs.mu.weight.shape != (actor.n_actions, mine[-1].in_features):
        raise HotloopError(
            f"The clone's layers {actor.sizes} ({actor.activation}) are not those of the policy {theirs}; "
            "use the same network for both."
        )
    with torch.no_grad():
        for ours, other in zip(mine[:-1], latent, strict=True):
            other.weight.copy_(ours.weight)
            other.bias.copy_(ours.bias)
        means, noises = slice(0, actor.n_actions), slice(actor.n_actions, None)
        for rows, other in ((means, theirs.mu), (noises, theirs.log_std)):
            other.weight.copy_(mine[-1].weight[rows])
            other.bias.copy_(mine[-1].bias[rows])


def train(
    settings: SACConfig,
    actor: SquashedActor | None,
    *,
    evaluate: Callable[[Policy], float],
    after_step: Callable[[int], None] = lambda steps: None,
) -> RLResult:
    """Train; `evaluate(policy)` chooses the best actor, `after_step(env steps)` shows progress."""
    require_extra("stable_baselines3", "sb3")
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

    stopwatch = Stopwatch()
    evaluating = stopwatch.part("evaluation", profile("evaluate"))
    evaluations: list[tuple[int, float]] = []
    best: dict[str, Any] = {}

    class Monitor(BaseCallback):
        """Counts episodes, shows progress, evaluates, and keeps the best actor."""

        def __init__(self) -> None:
            super().__init__()
            self.episodes = 0

        def _on_step(self) -> bool:
            self.episodes += sum("episode" in info for info in self.locals["infos"])
            after_step(self.num_timesteps)
            every = settings.eval_every_steps
            if self.num_timesteps // every > evaluations[-1][0] // every:
                self.evaluate()
            return not stop_requested()

        def evaluate(self) -> None:
            with evaluating:
                mean_return = evaluate(model_policy(self.model))
            if stop_requested() and evaluations:  # it may have ended early
                return
            if not evaluations or mean_return > max(value for _, value in evaluations):
                best["weights"] = {n: w.clone() for n, w in model.actor.state_dict().items()}
                best["step"] = self.model.num_timesteps
            evaluations.append((self.model.num_timesteps, mean_return))

    workers = SubprocVecEnv([make_car] * settings.n_envs, start_method="spawn")
    venv = VecMonitor(workers)
    try:
        with torch_threads(1), StopRequests() as stop:
            model = make_model(settings, actor, venv, stopwatch)
            monitor = Monitor()
            monitor.init_callback(model)
            monitor.evaluate()
            stopwatch.seconds.update(dict.fromkeys(stopwatch.seconds, 0.0))
            began = time.perf_counter()
            model.learn(settings.total_timesteps, callback=monitor)
            memory = largest_memory([process.pid for process in workers.processes])
            if stop.by is None:
                monitor.evaluate()
            seconds = time.perf_counter() - began
            model.actor.load_state_dict(best["weights"])
    finally:
        venv.close()
    return RLResult(
        policy=model_policy(model),
        how=f"Stable-Baselines3's SAC, {settings.n_envs} envs in separate processes (SubprocVecEnv)",
        env_steps=model.num_timesteps,
        steps_here=model.num_timesteps,
        updates=model._n_updates,
        episodes=monitor.episodes,
        seconds=seconds,
        parts_s=dict(stopwatch.seconds),
        evaluations=tuple(evaluations),
        best_at_step=best["step"] if best["step"] != model.num_timesteps else None,
        stopped_by=stop.by,
        worker_memory=memory,
    )


def make_model(settings: SACConfig, actor: SquashedActor | None, venv: Any, stopwatch: Stopwatch) -> Any:
    """Stable-Baselines3's SAC with our settings and our actor, its calls timed by the stopwatch."""
    require_extra("stable_baselines3", "sb3")
    from stable_baselines3 import SAC

    class FromClone(SAC):
        """Acts with its actor from the first step on, where the original starts with random actions."""

        def _sample_action(self, learning_starts: int, *rest: Any, **more: Any) -> Any:
            return super()._sample_action(settings.random_steps, *rest, **more)

        def _update_learning_rate(self, optimizers: Any) -> None:
            super()._update_learning_rate(optimizers)
            for group in self.actor.optimizer.param_groups:
                group["lr"] = settings.actor_rate

        def train(self, gradient_steps: int, batch_size: int = 64) -> None:
            self.actor.requires_grad_(self.num_timesteps > settings.actor_learning_starts)
            sampling = stopwatch.seconds["replay"]
            began = time.perf_counter()
            super().train(gradient_steps, batch_size)
            passed = time.perf_counter() - began
            stopwatch.add("learning", passed - (stopwatch.seconds["replay"] - sampling))

    model = FromClone(
        "MlpPolicy",
        venv,
        learning_rate=settings.learning_rate,
        buffer_size=settings.buffer_size,
        learning_starts=settings.learning_starts,
        batch_size=settings.batch_size,
        tau=settings.tau,
        gamma=settings.gamma,
        train_freq=settings.train_freq,
        gradient_steps=settings.gradient_steps,
        ent_coef=settings.ent_coef,
        target_entropy=settings.target_entropy,
        policy_kwargs={"net_arch": list(settings.net_arch), "activation_fn": torch.nn.ReLU},
        seed=settings.seed,
        device="cpu",
    )
    stopwatch.part("replay")
    if actor is not None:
        copy_actor(actor, model.actor)
        if settings.anchor_weight:
            add_anchor(model, copy.deepcopy(actor), settings.anchor_weight)
    _time_method(model.replay_buffer, "add", stopwatch, "replay")
    _time_method(model.replay_buffer, "sample", stopwatch, "replay")
    _time_method(venv, "step", stopwatch, "stepping")
    _time_method(model, "_sample_action", stopwatch, "stepping")
    return model


def add_anchor(model: Any, clone: SquashedActor, weight: float) -> None:
    """Add the gradient of the anchor loss just before the actor's optimizer steps."""
    sample, step = model.replay_buffer.sample, model.actor.optimizer.step
    seen: list[Any] = []

    def sampling(*given: Any, **more: Any) -> Any:
        batch = sample(*given, **more)
        seen[:] = [batch.observations]
        return batch

    def stepping(*given: Any, **more: Any) -> Any:
        if model.actor.mu.weight.requires_grad:
            actions = torch.tanh(model.actor.get_action_dist_params(seen[0])[0])
            with torch.no_grad():
                anchors = clone.greedy_actions(seen[0])
            (weight * anchor_loss(actions, anchors)).backward()  # type: ignore[no-untyped-call]
        return step(*given, **more)

    model.replay_buffer.sample, model.actor.optimizer.step = sampling, stepping


def _time_method(thing: Any, name: str, stopwatch: Stopwatch, part: str) -> None:
    original, clock = getattr(thing, name), stopwatch.part(part)

    def timed(*given: Any, **more: Any) -> Any:
        with clock:
            return original(*given, **more)

    setattr(thing, name, timed)


def model_policy(model: Any) -> Policy:
    """The model without noise."""

    def policy(observations: NDArray[Any]) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = model.predict(observations.copy(), deterministic=True)[0]
        return actions

    return policy
