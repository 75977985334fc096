"""Registers the environments with Gymnasium, so that `gymnasium.make("hotloop/Snake-v0")` finds them.

Importing this module registers them. Without an import, name the module in the id:
`gymnasium.make("hotloop.rl.envs:hotloop/Snake-v0")` (Gymnasium 1.0 removed plug-in entry points). The import
is cheap: numba is loaded when the first environment is created.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENVIRONMENTS = {
    "CartPole": ("cartpole", "CartPole"),
    "Petri": ("petri", "Petri"),
    "Platformer": ("platformer", "Platformer"),
    "Ricochet": ("ricochet", "Ricochet"),
    "Snake": ("snake", "Snake"),
    "Track": ("track", "Track"),
}
MARIO = "hotloop/Mario-v0"  # one emulator per environment: no vector version


def register_envs() -> None:
    """Register the single and vector versions of every environment; can be called repeatedly."""
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
