"""TorchRL's PPO: its collector, advantage module, clipped loss and replay buffer."""

import warnings
from collections import deque

warnings.filterwarnings("ignore")

import ppo_settings as s  # noqa: E402
import torch  # noqa: E402
import torchrl.collectors  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement  # noqa: E402
from torchrl.envs import GymEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

given = s.arguments()
torch.set_num_threads(1)
torch.manual_seed(given.seed)


def network(outputs: int, gain: float) -> nn.Module:
    made = MLP(in_features=4, out_features=outputs, num_cells=[s.HIDDEN] * 2, activation_class=nn.Tanh)
    linears = [part for part in made.modules() if isinstance(part, nn.Linear)]
    for part in linears:
        nn.init.orthogonal_(part.weight, gain if part is linears[-1] else 2**0.5)
        nn.init.zeros_(part.bias)
    return made


envs = TransformedEnv(SerialEnv(s.N_ENVS, lambda: GymEnv(given.env)), RewardSum())
envs.append_transform(StepCounter())
envs.set_seed(given.seed)
actor = ProbabilisticActor(
    TensorDictModule(network(2, 0.01), in_keys=["observation"], out_keys=["logits"]), in_keys=["logits"],
    distribution_class=OneHotCategorical, return_log_prob=True, spec=envs.action_spec,
)  # fmt: skip
critic = ValueOperator(network(1, 1.0), in_keys=["observation"])
advantage = GAE(gamma=s.GAMMA, lmbda=s.GAE_LAMBDA, value_network=critic, average_gae=False)
loss_of = ClipPPOLoss(
    actor, critic, clip_epsilon=s.CLIP_RANGE, entropy_coeff=s.ENT_COEF, critic_coeff=s.VF_COEF,
    loss_critic_type="l2", normalize_advantage=True,
)  # fmt: skip
adam = torch.optim.Adam(loss_of.parameters(), lr=s.LEARNING_RATE, eps=s.ADAM_EPS)
iterations = given.steps // s.ROLLOUT
warm = s.WARM_UP // s.ROLLOUT
Collector = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector
collector = Collector(
    envs, actor, frames_per_batch=s.ROLLOUT, total_frames=(iterations + warm) * s.ROLLOUT, device="cpu"
)
memory = TensorDictReplayBuffer(
    storage=LazyTensorStorage(s.ROLLOUT), sampler=SamplerWithoutReplacement(), batch_size=s.BATCH_SIZE
)
recent: deque[float] = deque(maxlen=100)
clock = None
for number, data in enumerate(collector):
    for _ in range(s.N_EPOCHS):
        with torch.no_grad():
            advantage(data)
        memory.extend(data.reshape(-1))
        for _ in range(s.ROLLOUT // s.BATCH_SIZE):
            loss = loss_of(memory.sample())
            adam.zero_grad()
            (loss["loss_objective"] + loss["loss_critic"] + loss["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss_of.parameters(), s.MAX_GRAD_NORM)
            adam.step()
    recent.extend(data["next", "episode_reward"][data["next", "done"]].tolist())
    if number == warm - 1:
        clock = s.Clock()
collector.shutdown()
assert clock is not None
clock.say(iterations * s.ROLLOUT, iterations * s.N_EPOCHS * s.ROLLOUT // s.BATCH_SIZE, list(recent))
