"""hotloop's DQN: `--env CartPole` is ours, `--env CartPole-v1` Gymnasium's own; `--learner` who learns."""

import sys

import dqn_settings as s

from hotloop.rl.train.dqn import train
from hotloop.rl.train.dqn_config import DQNConfig

learner = "fused"
if "--learner" in sys.argv:
    place = sys.argv.index("--learner")
    learner = sys.argv[place + 1]
    del sys.argv[place : place + 2]
given = s.arguments()


def config(steps: int) -> DQNConfig:
    return DQNConfig(
        env=given.env, seed=given.seed, total_steps=steps, num_envs=1, batch_size=s.BATCH,
        capacity=s.CAPACITY, updates=f"1/{s.TRAIN_EVERY}", learning_starts=s.LEARNING_STARTS,
        target_every=s.TARGET_EVERY,
        learning_rate=s.LEARNING_RATE, discount=s.DISCOUNT, max_grad_norm=s.LARGEST_NORM, double=False,
        epsilon_start=s.EPSILON_START, epsilon_end=s.EPSILON_END, epsilon_fraction=s.EPSILON_FRACTION,
        hidden=(s.HIDDEN, s.HIDDEN), learner=learner, quiet=True,  # type: ignore[arg-type]
    )  # fmt: skip


train(config(s.WARM_UP))
clock = s.Clock()
result = train(config(given.steps))  # making env, replay and network is on the clock
clock.say(result.env_steps, result.updates, [result.mean_return or 0.0])
