"""Registers the environments with Gymnasium, so that `gymnasium.make("hotloop/Snake-v0")` finds them.

Importing this module is enough; without an import of one's own, Gymnasium takes the module in the name:
`gymnasium.make("hotloop.rl.envs:hotloop/Snake-v0")` (the plug-in entry points of earlier versions are gone
since Gymnasium 1.0). Nothing heavy is loaded here: numba comes with the first environment that is made.
"""

from __future__ import annotations

ENVIRONMENTS = {
    "CartPole": ("cartpole", "CartPole"),
    "Petri": ("petri", "Petri"),
    "Platformer": ("platformer", "Platformer"),
    "Ricochet": ("ricochet", "Ricochet"),
    "Snake": ("snake", "Snake"),
    "Track": ("track", "Track"),
}
MARIO = "hotloop/Mario-v0"  # one environment in an emulator of its own: no batched form


def register_envs() -> None:
    """Tell Gymnasium of every environment, one and batched; doing it again changes nothing."""
    from gymnasium.envs.registration import register, registry

    for name, (folder, prefix) in ENVIRONMENTS.items():
        env_id = f"hotloop/{name}-v0"
        if env_id not in registry:
            where = f"hotloop.rl.envs.{folder}.env"
            register(
                id=env_id,
                entry_point=f"{where}:{prefix}Env",
                vector_entry_point=f"{where}:{prefix}VectorEnv",
                disable_env_checker=True,
            )
    if MARIO not in registry:
        register(id=MARIO, entry_point="hotloop.rl.envs.mario:MarioEnv", disable_env_checker=True)


register_envs()
