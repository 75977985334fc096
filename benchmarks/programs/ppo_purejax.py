"""PPO in the style of PureJaxRL: environment, rollout and learning in one jitted function, on the CPU."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import jax_cartpole
import numpy as np
import optax
import ppo_settings as s

given = s.arguments()
ITERATIONS = given.steps // s.ROLLOUT


def orthogonal(key, inputs, outputs, gain):
    return jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs)), jnp.zeros(outputs)


def network(key, outputs, gain):
    a, b, c = jax.random.split(key, 3)
    h, root = s.HIDDEN, 2**0.5
    return [orthogonal(a, 4, h, root), orthogonal(b, h, h, root), orthogonal(c, h, outputs, gain)]


def apply(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def env_step(key, state, elapsed, action):
    """Returns the state to continue from, elapsed steps, and whether the episode ended."""
    after, terminated = jax_cartpole.step(state, action)
    ended = terminated | (elapsed + 1 >= jax_cartpole.MAX_EPISODE_STEPS)
    restarted = jnp.where(ended, jax_cartpole.initial_state(key), after)
    return restarted, jnp.where(ended, 0, elapsed + 1), ended


adam = optax.chain(optax.clip_by_global_norm(s.MAX_GRAD_NORM), optax.adam(s.LEARNING_RATE, eps=s.ADAM_EPS))


def loss_of(nets, batch):
    observations, actions, old, advantages, targets = batch
    log_p = jax.nn.log_softmax(apply(nets[0], observations))
    ratio = jnp.exp(log_p[jnp.arange(actions.size), actions] - old)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - s.CLIP_RANGE, 1 + s.CLIP_RANGE)
    policy = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
    value = jnp.square(apply(nets[1], observations)[:, 0] - targets).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(1).mean()
    return policy + s.VF_COEF * value - s.ENT_COEF * entropy


def iteration(carry, _):
    nets, moments, state, elapsed, key = carry

    def step(inside, _):
        state, elapsed, key = inside
        key, choose, again = jax.random.split(key, 3)
        logits, value = apply(nets[0], state), apply(nets[1], state)[:, 0]
        action = jax.random.categorical(choose, logits)
        log_p = jax.nn.log_softmax(logits)[jnp.arange(s.N_ENVS), action]
        keys = jax.random.split(again, s.N_ENVS)
        length = elapsed + 1
        new, elapsed, done = jax.vmap(env_step)(keys, state, elapsed, action)
        return (new, elapsed, key), (state, action, log_p, value, done, jnp.where(done, length, 0))

    (state, elapsed, key), (seen, acted, log_p, values, dones, lengths) = jax.lax.scan(
        step, (state, elapsed, key), None, s.N_STEPS
    )
    last = apply(nets[1], state)[:, 0]

    def back(inside, at):
        following, after = inside
        value, done = at
        error = 1.0 + s.GAMMA * after * (1 - done) - value
        following = error + s.GAMMA * s.GAE_LAMBDA * (1 - done) * following
        return (following, value), following

    _, advantages = jax.lax.scan(back, (jnp.zeros(s.N_ENVS), last), (values, dones), reverse=True, unroll=16)
    flat = [
        one.reshape(s.ROLLOUT, *one.shape[2:])
        for one in (seen, acted, log_p, advantages, advantages + values)
    ]

    def epoch(inside, _):
        nets, moments, key = inside
        key, shuffle = jax.random.split(key)
        rows = jax.random.permutation(shuffle, s.ROLLOUT)
        parts = [one[rows].reshape(-1, s.BATCH_SIZE, *one.shape[1:]) for one in flat]

        def minibatch(inside, batch):
            nets, moments = inside
            change, moments = adam.update(jax.grad(loss_of)(nets, batch), moments)
            return (optax.apply_updates(nets, change), moments), None

        (nets, moments), _ = jax.lax.scan(minibatch, (nets, moments), parts)
        return (nets, moments, key), None

    (nets, moments, key), _ = jax.lax.scan(epoch, (nets, moments, key), None, s.N_EPOCHS)
    return (nets, moments, state, elapsed, key), lengths


def run(key):
    key, a, c, e = jax.random.split(key, 4)
    nets = [network(a, 2, 0.01), network(c, 1, 1.0)]
    state = jax.vmap(jax_cartpole.initial_state)(jax.random.split(e, s.N_ENVS))
    carry = (nets, adam.init(nets), state, jnp.zeros(s.N_ENVS, jnp.int32), key)
    return jax.lax.scan(iteration, carry, None, ITERATIONS)[1]


compiled = jax.jit(run).lower(jax.random.key(0)).compile()
key = jax.random.key(given.seed)
clock = s.Clock()
lengths = jax.block_until_ready(compiled(key))
ended = np.asarray(lengths).reshape(-1)  # with numpy: JAX would compile the selection while timed
recent = ended[ended > 0][-100:]
clock.say(
    ITERATIONS * s.ROLLOUT, ITERATIONS * s.N_EPOCHS * s.ROLLOUT // s.BATCH_SIZE, [float(x) for x in recent]
)
