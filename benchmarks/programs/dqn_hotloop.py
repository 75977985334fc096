"""hotloop's DQN: `--env CartPole` is ours, `--env CartPole-v1` Gymnasium's; `--learner` picks the learner."""

import sys

import dqn_settings as s

from hotloop.rl.train.dqn import DQNConfig, train

learner = "fused"
if "--learner" in sys.argv:
    place = sys.argv.index("--learner")
    learner = sys.argv[place + 1]
    del sys.argv[place : place + 2]
given = s.arguments()


def config(steps: int) -> DQNConfig:
    return DQNConfig(
        env=given.env, seed=given.seed, total_timesteps=steps, n_envs=1, batch_size=s.BATCH_SIZE,
        buffer_size=s.BUFFER_SIZE, train_freq=s.TRAIN_FREQ, learning_starts=s.LEARNING_STARTS,
        target_update_interval=s.TARGET_UPDATE_INTERVAL,
        learning_rate=s.LEARNING_RATE, gamma=s.GAMMA, max_grad_norm=s.MAX_GRAD_NORM, double=False,
        exploration_initial_eps=s.INITIAL_EPS, exploration_final_eps=s.FINAL_EPS,
        exploration_fraction=s.EXPLORATION_FRACTION,
        net_arch=(s.WIDTH, s.WIDTH), learner=learner, quiet=True,  # type: ignore[arg-type]
    )  # fmt: skip


train(config(s.WARM_UP))
clock = s.Clock()
result = train(config(given.steps))  # making env, replay and network is timed, too
clock.say(result.env_steps, result.updates, [result.mean_return or 0.0])
