"""hotloop's PPO: `--env CartPole` is our batched one, `--env CartPole-v1` Gymnasium's own."""

import ppo_settings as s

from hotloop.rl.train.ppo import PPOConfig, train

given = s.arguments()


def config(steps: int) -> PPOConfig:
    return PPOConfig(
        env=given.env, seed=given.seed, total_steps=steps, num_envs=s.ENVS, steps=s.STEPS, epochs=s.EPOCHS,
        minibatch=s.MINIBATCH, learning_rate=s.LEARNING_RATE, discount=s.DISCOUNT, trace=s.TRACE, clip=s.CLIP,
        value_weight=s.VALUE_WEIGHT, entropy_weight=s.ENTROPY_WEIGHT, max_grad_norm=s.LARGEST_NORM,
        adam_epsilon=s.ADAM_EPSILON, hidden=(s.HIDDEN, s.HIDDEN), learner="fused", quiet=True,
    )  # fmt: skip


train(config(s.WARM_UP))
clock = s.Clock()
result = train(config(given.steps))  # making envs and network is on the clock
clock.say(result.env_steps, result.updates, [result.mean_return or 0.0])
