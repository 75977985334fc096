"""hotloop's PPO: `--env CartPole` is our batched one, `--env CartPole-v1` Gymnasium's own."""

import ppo_settings as s

from hotloop.rl.train.ppo import PPOConfig, train

given = s.arguments()


def config(steps: int) -> PPOConfig:
    return PPOConfig(
        env=given.env, seed=given.seed, total_timesteps=steps, n_envs=s.N_ENVS, n_steps=s.N_STEPS,
        n_epochs=s.N_EPOCHS, batch_size=s.BATCH_SIZE, learning_rate=s.LEARNING_RATE, gamma=s.GAMMA,
        gae_lambda=s.GAE_LAMBDA, clip_range=s.CLIP_RANGE, vf_coef=s.VF_COEF, ent_coef=s.ENT_COEF,
        max_grad_norm=s.MAX_GRAD_NORM, adam_eps=s.ADAM_EPS, net_arch=(s.HIDDEN, s.HIDDEN),
        learner="fused", quiet=True,
    )  # fmt: skip


train(config(s.WARM_UP))
clock = s.Clock()
result = train(config(given.steps))  # making envs and network is timed, too
clock.say(result.env_steps, result.updates, [result.mean_return or 0.0])
