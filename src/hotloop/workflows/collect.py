"""`hotloop.collect`: collect experience from any Gymnasium environment in processes, for any learner."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hotloop.rl.collect.protocol import Actor, Collector, Method, Spaces, WhenFull

Kind = Literal["processes", "locked", "serial"]


def collect(
    make_env: str | Callable[..., Any],
    make_actor: Callable[[Spaces], Actor] | None = None,
    *,
    collectors: int = 2,
    n_envs: int = 1,
    n_weights: int = 0,
    control: float = 0.0,
    frame_stack: int = 1,
    infos: tuple[str, ...] = (),
    seed: int = 0,
    kind: Kind = "processes",
    on: str | None = None,
    ring_rows: int = 0,
    when_full: WhenFull = "wait",
    method: Method = "spawn",
    hang_timeout_s: float = 60.0,
    log: Callable[[str], None] | None = None,
) -> Collector:
    """Start a collector. Use it as `with hotloop.collect(...) as collector:`, or call `close()` at the end.

    `make_env` is a Gymnasium id, or a function that returns an env or vector env; it is called with a seed if
    it takes an argument. `make_actor(spaces)` returns the `Actor` that chooses actions; the default chooses
    random ones. `n_weights` is the length of the vector that `publish` sends to actors. `kind` is the
    transport: "processes" (a lock-free ring per process), "locked" (one locked queue) or "serial" (everything
    in this process). With `on="ray"` or `on="ray://HOST:PORT"` the processes run on the nodes of a Ray
    cluster. The other settings are those of `hotloop.rl.collect.protocol.Task` and `Setup`.
    """
    require_extra("gymnasium", "rl")
    # Imported after the check: they need gymnasium, and its absence should be one clear sentence.
    from hotloop.rl.collect.locked import LockedCollector
    from hotloop.rl.collect.processes import ProcessCollector
    from hotloop.rl.collect.protocol import Setup, Task
    from hotloop.rl.collect.ray_nodes import RayCollector
    from hotloop.rl.collect.serial import SerialCollector

    kinds: dict[str, Any] = {
        "processes": ProcessCollector,
        "locked": LockedCollector,
        "serial": SerialCollector,
    }
    if kind not in kinds:
        raise HotloopError(f"kind={kind!r} is unknown; use one of {', '.join(map(repr, kinds))}.")
    if on is not None and kind != "processes":
        raise HotloopError(f"kind={kind!r} runs on this computer; leave out on={on!r}, or kind.")
    task = Task(
        _seeded_factory(make_env),
        make_actor or RandomActor,
        n_weights=n_weights,
        control=control,
        n_envs=n_envs,
        frame_stack=frame_stack,
        infos=infos,
        seed=seed,
    )
    setup = Setup(
        collectors=collectors,
        ring_rows=ring_rows,
        when_full=when_full,
        method=method,
        hang_timeout_s=hang_timeout_s,
        log=log,
    )
    collector: Collector = kinds[kind](task, setup) if on is None else RayCollector(task, setup, on)
    collector.start()
    return collector


class RandomActor:
    """Samples the action space."""

    def __init__(self, spaces: Spaces):
        from gymnasium.vector.utils import batch_space

        self._space = batch_space(spaces.action, spaces.n_envs)
        self._seeded = False

    def load(self, weights: NDArray[np.float32]) -> None:
        """Ignore the weights."""

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[Any]:
        if not self._seeded:
            self._space.seed(int(rng.integers(2**31)))
            self._seeded = True
        found: NDArray[Any] = self._space.sample()
        return found


def _seeded_factory(make_env: str | Callable[..., Any]) -> Callable[[int], Any]:
    if isinstance(make_env, str):
        return partial(_make_by_name, make_env)
    if not callable(make_env):
        raise HotloopError(
            f"make_env={make_env!r} must be a Gymnasium id or a function that returns an environment."
        )
    try:
        inspect.signature(make_env).bind(0)
    except TypeError:
        return partial(_make_without_seed, make_env)
    except ValueError:  # it has no signature, as some built-in classes
        pass
    return make_env


def _make_by_name(name: str, _seed: int) -> Any:
    import gymnasium

    import hotloop.rl.envs  # noqa: F401 - registers our environments; needs gymnasium, an extra

    return gymnasium.make(name)


def _make_without_seed(make_env: Callable[[], Any], _seed: int) -> Any:
    return make_env()
