"""DQN in the style of rejax: environment, replay and learning in one jitted function, on the CPU."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

from functools import partial
from itertools import pairwise

import dqn_settings as s
import jax
import jax.numpy as jnp
import jax_cartpole
import optax

given = s.arguments()
adam = optax.chain(optax.clip_by_global_norm(s.MAX_GRAD_NORM), optax.adam(s.LEARNING_RATE))


def network(key):
    sizes = (4, s.WIDTH, s.WIDTH, 2)
    layers = []
    for inputs, outputs in pairwise(sizes):
        key, one, two = jax.random.split(key, 3)
        bound = inputs**-0.5
        weights = jax.random.uniform(one, (inputs, outputs), minval=-bound, maxval=bound)
        layers.append((weights, jax.random.uniform(two, (outputs,), minval=-bound, maxval=bound)))
    return layers


def apply(layers, x):
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def env_step(key, state, elapsed, action):
    """Returns the state to continue from, the true next state, elapsed steps, terminated, ended."""
    after, terminated = jax_cartpole.step(state, action)
    ended = terminated | (elapsed + 1 >= jax_cartpole.MAX_EPISODE_STEPS)
    restarted = jnp.where(ended, jax_cartpole.initial_state(key), after)
    return restarted, after, jnp.where(ended, 0, elapsed + 1), terminated, ended


def loss_of(layers, target, batch):
    seen, actions, rewards, later, fell = batch
    wanted = rewards + s.GAMMA * (1.0 - fell) * apply(target, later).max(axis=1)
    values = apply(layers, seen)[jnp.arange(s.BATCH_SIZE), actions]
    return optax.huber_loss(values, wanted).mean()


def iteration(steps, carry, number):
    """TRAIN_FREQ env steps and one update."""
    layers, target, moments, replay, state, elapsed, key = carry

    def step(inside, offset):
        replay, state, elapsed, key = inside
        key, choose, explore, again = jax.random.split(key, 4)
        at = number * s.TRAIN_FREQ + offset
        epsilon = jnp.interp(
            at, jnp.array([0.0, s.EXPLORATION_FRACTION * steps]), jnp.array([1.0, s.FINAL_EPS])
        )
        best = apply(layers, state).argmax()
        action = jnp.where(jax.random.uniform(explore) < epsilon, jax.random.randint(choose, (), 0, 2), best)
        new, after, now, fell, over = env_step(again, state, elapsed, action)
        row = at % s.BUFFER_SIZE
        seen, actions, rewards, later, ends = replay
        replay = (
            seen.at[row].set(state),
            actions.at[row].set(action),
            rewards.at[row].set(1.0),
            later.at[row].set(after),
            ends.at[row].set(fell.astype(jnp.float32)),
        )
        return (replay, new, now, key), jnp.where(over, elapsed + 1, 0)

    (replay, state, elapsed, key), lengths = jax.lax.scan(
        step, (replay, state, elapsed, key), jnp.arange(s.TRAIN_FREQ)
    )
    done = (number + 1) * s.TRAIN_FREQ
    key, draw = jax.random.split(key)
    rows = jax.random.randint(draw, (s.BATCH_SIZE,), 0, jnp.minimum(done, s.BUFFER_SIZE))

    def learn(layers, moments):
        gradient = jax.grad(loss_of)(layers, target, tuple(part[rows] for part in replay))
        change, moments = adam.update(gradient, moments)
        return optax.apply_updates(layers, change), moments

    layers, moments = jax.lax.cond(
        done > s.LEARNING_STARTS, learn, lambda layers, moments: (layers, moments), layers, moments
    )
    move = done % s.TARGET_UPDATE_INTERVAL < s.TRAIN_FREQ
    target = jax.tree.map(lambda mine, theirs: jnp.where(move, theirs, mine), target, layers)
    return (layers, target, moments, replay, state, elapsed, key), lengths


@partial(jax.jit, static_argnums=1)
def run(key, steps):
    key, one, two = jax.random.split(key, 3)
    layers = network(one)
    n = s.BUFFER_SIZE
    replay = (jnp.zeros((n, 4)), jnp.zeros(n, int), jnp.zeros(n), jnp.zeros((n, 4)), jnp.zeros(n))
    carry = (layers, layers, adam.init(layers), replay, jax_cartpole.initial_state(two), 0, key)
    return jax.lax.scan(partial(iteration, steps), carry, jnp.arange(steps // s.TRAIN_FREQ))


key = jax.random.key(given.seed)
compiled = run.lower(key, given.steps).compile()
clock = s.Clock()
_, lengths = jax.block_until_ready(compiled(key))
found = lengths.reshape(-1)
recent = [float(length) for length in found[found > 0][-100:]]
clock.say(given.steps, (given.steps - s.LEARNING_STARTS) // s.TRAIN_FREQ, recent)
