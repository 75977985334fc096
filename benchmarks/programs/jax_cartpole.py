"""CartPole's dynamics in JAX, for the JAX trainers: one env, without time limit and resets."""

import jax
import jax.numpy as jnp

MAX_EPISODE_STEPS = 500


def initial_state(key):
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state, action):
    """The next state, and whether the episode terminates there."""
    x, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * spin**2 * sine) / 1.1
    spin_change = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    speed_change = push - 0.05 * spin_change * cosine / 1.1
    after = jnp.array([x + 0.02 * v, v + 0.02 * speed_change, angle + 0.02 * spin, spin + 0.02 * spin_change])
    return after, (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 12 * jnp.pi / 180)
