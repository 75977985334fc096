"""Vector environments by name, made the way our trainers run fastest."""

from __future__ import annotations

import importlib
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.rl.envs import ENVIRONMENTS


def make_envs(name: str, count: int, **settings: Any) -> Any:
    """`count` environments that reset in the step that ends an episode.

    `name` is one of ours (`CartPole`, or `hotloop/CartPole-v0`), which are made with `copy=False`: their
    arrays are overwritten by the next step; or any Gymnasium id, which runs in one process
    (`SyncVectorEnv`). `settings` go to the environment.
    """
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    own = name.removeprefix("hotloop/").removesuffix("-v0")
    if own in ENVIRONMENTS:
        folder, prefix = ENVIRONMENTS[own]
        module = importlib.import_module(f"hotloop.rl.envs.{folder}.env")
        make = getattr(module, f"{prefix}VectorEnv")
        return make(count, autoreset_mode=AutoresetMode.SAME_STEP, copy=False, **settings)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as unknown:
        raise HotloopError(
            f"env={name!r} is not known ({unknown}); use one of {', '.join(ENVIRONMENTS)} or a Gymnasium id."
        ) from unknown
    return SyncVectorEnv(
        [lambda: gymnasium.make(name, **settings)] * count, copy=False, autoreset_mode=AutoresetMode.SAME_STEP
    )
