"""PufferLib's own trainer and its own CartPole in C, at the settings all trainers have.

Batches are whole segments of 128 steps, chosen by the size of their advantages; this is part of PufferLib's
algorithm and can only be made uniform (`prio_alpha` 0).
"""

import contextlib
import io
import os
import sys
import tempfile
import types

import ppo_settings as s
import torch
from torch import nn

elsewhere = tempfile.TemporaryDirectory()
os.chdir(elsewhere.name)  # importing PufferLib leaves a link in the current folder
sys.modules["pufferlib.sweep"] = types.ModuleType(
    "pufferlib.sweep"
)  # imports packages that training does not need
import pufferlib.vector  # noqa: E402
from pufferlib.ocean.cartpole.cartpole import Cartpole  # noqa: E402
from pufferlib.pufferl import PuffeRL  # noqa: E402

given = s.arguments()
torch.set_num_threads(1)
torch.manual_seed(given.seed)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        h = s.HIDDEN
        self.actor = nn.Sequential(layer(4, h), nn.Tanh(), layer(h, h), nn.Tanh(), layer(h, 2, 0.01))
        self.critic = nn.Sequential(layer(4, h), nn.Tanh(), layer(h, h), nn.Tanh(), layer(h, 1, 1.0))

    def forward_eval(self, observations, state=None):
        return self.actor(observations), self.critic(observations)

    forward = forward_eval


envs = pufferlib.vector.make(Cartpole, env_kwargs={"num_envs": s.N_ENVS}, backend=pufferlib.PufferEnv)
settings = {
    "env": "cartpole", "seed": given.seed, "device": "cpu", "cpu_offload": False, "use_rnn": False,
    "torch_deterministic": False, "compile": False, "precision": "float32", "optimizer": "adam",
    "batch_size": s.ROLLOUT, "bptt_horizon": s.N_STEPS, "minibatch_size": s.BATCH_SIZE,
    "max_minibatch_size": s.BATCH_SIZE, "update_epochs": s.N_EPOCHS, "learning_rate": s.LEARNING_RATE,
    "anneal_lr": False, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": s.ADAM_EPS,
    "gamma": s.GAMMA, "gae_lambda": s.GAE_LAMBDA, "clip_coef": s.CLIP_RANGE, "vf_coef": 2 * s.VF_COEF,
    "vf_clip_coef": 1e9, "max_grad_norm": s.MAX_GRAD_NORM, "ent_coef": s.ENT_COEF,
    "vtrace_rho_clip": 1.0, "vtrace_c_clip": 1.0, "prio_alpha": 0.0, "prio_beta0": 0.0,
    "total_timesteps": s.WARM_UP + given.steps + s.ROLLOUT, "checkpoint_interval": 10**9,
    "data_dir": tempfile.mkdtemp(),
}  # fmt: skip
lengths: list[float] = []
with contextlib.redirect_stdout(io.StringIO()):  # its dashboard
    trainer = PuffeRL(settings, envs, Policy())
    trainer.print_dashboard = lambda *args, **kwargs: None

    def iteration() -> None:
        trainer.evaluate()
        if trainer.stats.get("episode_length"):
            lengths.extend(trainer.stats["episode_length"])
            trainer.stats.clear()
        trainer.train()

    for _ in range(s.WARM_UP // s.ROLLOUT):
        iteration()
    clock = s.Clock()
    iterations = given.steps // s.ROLLOUT
    for _ in range(iterations):
        iteration()
clock.say(iterations * s.ROLLOUT, iterations * trainer.total_minibatches, lengths[-100:])
trainer.utilization.stop()
sys.stdout.flush()
