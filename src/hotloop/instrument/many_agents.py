"""PettingZoo and RLCard: envs with several agents, which step all at once (parallel) or one after the other.

An env step is one call of `step`: of all agents in a parallel env, of one agent where they take turns. The
call that only removes an agent whose episode is over (`step(None)`) is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.gymnasium import env_observe
from hotloop.instrument.method_patches import defines, patch_below, patch_outermost
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.measure.profiler import default

env_step = default.profile("env_step")
env_reset = default.profile("env_reset")
env_render = default.profile("env_render")
evaluate = default.profile("evaluate")

MAX_RUNNING = 1000  # envs whose current episode is known


class _Episode:
    """The current episode of one env."""

    def __init__(self, evaluates: bool):
        self.evaluates = evaluates
        self.length = 0
        self.returns: dict[Any, float] = {}  # of each agent


_running: dict[int, _Episode] = {}  # by id of the env
_removed = False  # an agent whose episode is over, in the step that is being counted


def _count(env: Any, rewards: dict[Any, float], ended: bool, counts: bool = True) -> None:
    """Count one step; without `counts` it only ends the episode."""
    episode = _running.get(id(env))
    if episode is None:
        if len(_running) >= MAX_RUNNING:
            _running.clear()
        step_counting.note_env(getattr(env, "unwrapped", env), 1)
        episode = _running[id(env)] = _Episode(step_counting.is_evaluation(env, sys._getframe(2)))
    if ended:
        del _running[id(env)]
    if episode.evaluates:
        return
    for agent, reward in rewards.items():
        episode.returns[agent] = episode.returns.get(agent, 0.0) + float(reward)
    episode.length += counts
    words: dict[str, Any] = {"env_steps": int(counts)}
    if ended:
        words |= {"episodes": 1, "episode_length": episode.length}
        if episode.returns:
            words["episode_return"] = sum(episode.returns.values()) / len(episode.returns)
    default.progress(**words)


def _count_round(env: Any, result: Any) -> None:
    """A step of all agents."""
    _, rewards, terminated, truncated, _ = result
    ended = all(terminated[agent] or truncated.get(agent, False) for agent in terminated)
    _count(env, rewards, ended or not env.agents)


def _count_turn(env: Any, result: Any) -> None:
    """A step of one agent. Rewards of the step are those of all agents."""
    global _removed
    removed, _removed = _removed, False
    if not removed or not env.agents:
        _count(env, {} if removed else env.rewards, not env.agents, counts=not removed)


def _count_move(env: Any, result: Any) -> None:
    """A move in a game, whose payoffs are known at its end."""
    _count(env, {}, bool(env.is_over()))


_rounds = step_counting.new_counter(1, (2, 3), is_vector=False, on_unknown=_count_round)
_turns = step_counting.new_counter(1, (2, 3), is_vector=False, on_unknown=_count_turn)
_moves = step_counting.new_counter(1, (2, 3), is_vector=False, on_unknown=_count_move)


def _began(counter: Any) -> Callable[[Any, Any], None]:
    forget = step_counting.forget_after_reset(counter)

    def begin(env: Any, result: Any) -> None:
        if not env_step.is_open():
            _running.pop(id(env), None)
        forget(env, result)

    return begin


def _envs(counter: Any) -> Callable[[type], Iterable[Patch]]:
    begin = _began(counter)

    def methods(cls: type) -> Iterable[Patch]:
        if defines(cls, "step"):
            yield patch_below(cls, "step", env_step, "environment", counter)
        if defines(cls, "reset"):
            yield patch_below(cls, "reset", env_reset, "environment", begin)
        if defines(cls, "render"):
            yield patch_below(cls, "render", env_render, "rendering")
        for name in ("last", "observe") if counter is _turns else ():
            if defines(cls, name):
                yield Patch(cls, name, _observing)

    return methods


def _observing(observe: Callable[..., Any]) -> Callable[..., Any]:
    """What an agent sees before its turn."""
    inside = (env_observe, env_step, env_reset)
    wrapped: Callable[..., Any] = env_observe.wrap(observe, skip_inside=inside, after=_seen)
    return wrapped


def _seen(env: Any, result: Any) -> None:
    _turns.see(env, result[0] if isinstance(result, tuple) and result else result)


def patch_pettingzoo(module: ModuleType, into: Patches) -> None:
    """`pettingzoo.utils.env`: every env and wrapper, existing and future."""
    into.apply([follow_subclasses(module.ParallelEnv, _envs(_rounds), into)])
    into.apply([Patch(module.AECEnv, "_was_dead_step", _removing)])
    into.apply([follow_subclasses(module.AECEnv, _envs(_turns), into)])


def _removing(remove: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, action: Any) -> Any:
        global _removed
        _removed = True
        return remove(self, action)

    return run


def patch_rlcard(module: ModuleType, into: Patches) -> None:
    """`rlcard.envs.env`: every game; one that is played without training is an evaluation."""

    def methods(cls: type) -> Iterable[Patch]:
        yield from _envs(_moves)(cls)
        if defines(cls, "run"):
            yield Patch(cls, "run", _running_games)

    into.apply([follow_subclasses(module.Env, methods, into)])


def _running_games(run: Callable[..., Any]) -> Callable[..., Any]:
    inside = evaluate.wrap(run, skip_inside=(evaluate,))

    def play(self: Any, is_training: bool = False) -> Any:
        return (run if is_training else inside)(self, is_training)

    return play


def patch_tournament(module: ModuleType, into: Patches) -> None:
    """`rlcard.utils.utils`: tournaments are evaluations."""
    into.apply([patch_outermost(module, "tournament", evaluate)])
