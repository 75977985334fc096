"""Reinforcement learning from the clone by Stable-Baselines3's SAC, cars in processes of their own.

The networks, the hyper-parameters and the updates for each env step are those of our trainer. SAC there does
one update for each vector step by default, which with n envs is an n-th of the work; here `gradient_steps`
makes up for it. The actor is frozen until `actor_starts`, as in our trainer.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.machine.process_memory import ProcessMemory, largest_memory
from hotloop.rl.train.runs import Stopwatch
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.imitate_stages import choosing, sac_settings
from hotloop.rl.workloads.outcome import Note
from hotloop.rl.workloads.stages import StageBar
from hotloop.rl.workloads.track_laps import Best


def make_car() -> Any:
    """One car; here so that a worker process can import it."""
    from hotloop.rl.envs.track.env import TrackEnv

    return TrackEnv()


def copy_actor(actor: Any, theirs: Any) -> None:
    """Put our actor's weights into theirs; raises HotloopError when the networks differ."""
    import torch
    from torch import nn

    mine = [layer for layer in actor.layers if isinstance(layer, nn.Linear)]
    latent = [layer for layer in theirs.latent_pi if isinstance(layer, nn.Linear)]
    same = [tuple(layer.weight.shape) for layer in mine[:-1]] == [tuple(x.weight.shape) for x in latent]
    activations = {type(layer) for layer in theirs.latent_pi if not isinstance(layer, nn.Linear)}
    same = same and activations == {type(layer) for layer in actor.layers if not isinstance(layer, nn.Linear)}
    if not same or theirs.mu.weight.shape != (actor.actions, mine[-1].in_features):
        raise HotloopError(
            f"the clone's layers {actor.sizes} ({actor.activation}) are not those of the policy {theirs}; "
            "make both with the same network."
        )
    with torch.no_grad():
        for ours, other in zip(mine[:-1], latent, strict=True):
            other.weight.copy_(ours.weight)
            other.bias.copy_(ours.bias)
        means, noises = slice(0, actor.actions), slice(actor.actions, None)
        for rows, other in ((means, theirs.mu), (noises, theirs.log_std)):
            other.weight.copy_(mine[-1].weight[rows])
            other.bias.copy_(mine[-1].bias[rows])


def make_model(config: Imitate, actor: Any, venv: Any, watch: Stopwatch) -> Any:
    """Stable-Baselines3's SAC with our settings and our actor, its calls timed by `watch`."""
    require_extra("stable_baselines3", "sb3")
    import torch
    from stable_baselines3 import SAC

    settings = sac_settings(config)
    rate = settings.updates_per_env_step * config.envs

    class FromClone(SAC):
        """Drives by its actor from the first step on, where the original would act at random."""

        def _sample_action(self, learning_starts: int, *rest: Any, **more: Any) -> Any:
            first = settings.random_steps if config.start == "scratch" else 0
            return super()._sample_action(first, *rest, **more)

        def _update_learning_rate(self, optimizers: Any) -> None:
            super()._update_learning_rate(optimizers)
            for group in self.actor.optimizer.param_groups:
                group["lr"] = settings.actor_rate

        def train(self, gradient_steps: int, batch_size: int = 64) -> None:
            self.actor.requires_grad_(self.num_timesteps > settings.actor_starts)
            sampling = watch.seconds["replay"]
            began = time.perf_counter()
            super().train(gradient_steps, batch_size)
            passed = time.perf_counter() - began
            watch.add("learning", passed - (watch.seconds["replay"] - sampling))

    model = FromClone(
        "MlpPolicy",
        venv,
        learning_rate=settings.learning_rate,
        buffer_size=settings.capacity,
        learning_starts=settings.learning_starts,
        batch_size=settings.batch_size,
        tau=settings.target_rate,
        gamma=settings.discount,
        train_freq=rate.denominator,
        gradient_steps=rate.numerator,
        ent_coef=f"auto_{settings.first_temperature}",
        target_entropy=settings.target_entropy_for(2),
        policy_kwargs={"net_arch": list(settings.hidden), "activation_fn": torch.nn.ReLU},
        seed=settings.seed,
        device="cpu",
    )
    if actor is not None:
        copy_actor(actor, model.actor)
    watch.part("replay")
    if actor is not None and settings.anchor_weight:
        hold_on(model, copy.deepcopy(actor), settings.anchor_weight)
    _time(model.replay_buffer, "add", watch, "replay")
    _time(model.replay_buffer, "sample", watch, "replay")
    _time(venv, "step", watch, "stepping")
    _time(model, "_sample_action", watch, "stepping")
    return model


def hold_on(model: Any, clone: Any, weight: float) -> None:
    """Add the gradient of the distance from the clone just before the actor's optimizer steps."""
    import torch

    from hotloop.rl.train.sac_torch import anchor_loss

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
                anchors = clone.best(seen[0])
            (weight * anchor_loss(actions, anchors)).backward()  # type: ignore[no-untyped-call]
        return step(*given, **more)

    model.replay_buffer.sample, model.actor.optimizer.step = sampling, stepping


def _time(thing: Any, name: str, watch: Stopwatch, part: str) -> None:
    """Let one object's method be timed."""
    original, clock = getattr(thing, name), watch.part(part)

    def timed(*given: Any, **more: Any) -> Any:
        with clock:
            return original(*given, **more)

    setattr(thing, name, timed)


def best_of_model(model: Any) -> Best:
    """What the model does without noise."""

    def best(observations: NDArray[Any]) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = model.predict(observations.copy(), deterministic=True)[0]
        return actions

    return best


def train_with_sb3(
    config: Imitate, actor: Any, note: Note | None, quiet: bool
) -> tuple[dict[str, Any], ProcessMemory | None]:
    """Train; gives what the stage reports, and the memory of a car's process."""
    require_extra("stable_baselines3", "sb3")
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

    settings, watch = sac_settings(config), Stopwatch()
    judge = choosing(config)
    evaluations: list[tuple[int, float]] = []
    kept: dict[str, Any] = {}
    bar = StageBar("rl", config.timesteps, "steps", quiet=quiet, note=note)

    class Watching(BaseCallback):
        """The bar, the episodes, and the evaluations between which the best actor is kept."""

        def __init__(self) -> None:
            super().__init__()
            self.episodes = 0

        def _on_step(self) -> bool:
            self.episodes += sum("episode" in info for info in self.locals["infos"])
            bar.update(min(self.num_timesteps, config.timesteps))
            every = settings.evaluate_every
            if self.num_timesteps // every > evaluations[-1][0] // every:
                self.look()
            return True

        def look(self) -> None:
            with evaluating:
                found = judge(best_of_model(self.model))
            if not evaluations or found > max(value for _, value in evaluations):
                kept["weights"] = {n: w.clone() for n, w in model.actor.state_dict().items()}
                kept["at"] = self.model.num_timesteps
            evaluations.append((self.model.num_timesteps, found))

    evaluating = watch.part("evaluation")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    workers = SubprocVecEnv([make_car] * config.envs, start_method="spawn")
    venv = VecMonitor(workers)
    try:
        model = make_model(config, actor, venv, watch)
        watching = Watching()
        watching.init_callback(model)
        watching.look()
        watch.seconds.update(dict.fromkeys(watch.seconds, 0.0))
        began = time.perf_counter()
        model.learn(config.timesteps, callback=watching)
        memory = largest_memory([process.pid for process in workers.processes])
        watching.look()
        seconds = time.perf_counter() - began
        model.actor.load_state_dict(kept["weights"])
    finally:
        bar.close()
        venv.close()
        torch.set_num_threads(threads)
    return {
        "best": best_of_model(model),
        "env_steps": model.num_timesteps,
        "steps_here": model.num_timesteps,
        "updates": model._n_updates,
        "episodes": watching.episodes,
        "seconds": seconds,
        "stopped_by": None,
        "parts_s": dict(watch.seconds),
        "evaluations": tuple(evaluations),
        "kept_from": kept["at"] if kept["at"] != model.num_timesteps else None,
        "who": f"Stable-Baselines3's SAC, {config.envs} envs in processes of their own (SubprocVecEnv)",
    }, memory
