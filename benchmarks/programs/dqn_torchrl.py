"""TorchRL's DQN: its collector, replay buffer, loss and target updates."""

import warnings
from collections import deque

warnings.filterwarnings("ignore")

import dqn_settings as s  # noqa: E402
import torch  # noqa: E402
import torchrl.collectors  # noqa: E402
from tensordict.nn import TensorDictSequential  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.envs import GymEnv, RewardSum, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, EGreedyModule, QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss, HardUpdate  # noqa: E402

given = s.arguments()
torch.set_num_threads(1)
torch.manual_seed(given.seed)
Collector = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector


def run(steps: int) -> tuple[int, deque[float]]:
    env = TransformedEnv(GymEnv(given.env, categorical_action_encoding=True), RewardSum())
    env.set_seed(given.seed)
    net = MLP(in_features=4, out_features=2, num_cells=[s.WIDTH] * 2, activation_class=nn.ReLU)
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(
        env.action_spec, eps_init=s.INITIAL_EPS, eps_end=s.FINAL_EPS,
        annealing_num_steps=int(s.EXPLORATION_FRACTION * steps),
    )  # fmt: skip
    loss_of = DQNLoss(actor, delay_value=True, loss_function="smooth_l1", action_space=env.action_spec)
    loss_of.make_value_estimator(gamma=s.GAMMA)
    target = HardUpdate(loss_of, value_network_update_interval=s.TARGET_UPDATE_INTERVAL // s.TRAIN_FREQ)
    adam = torch.optim.Adam(loss_of.parameters(), lr=s.LEARNING_RATE)
    memory = TensorDictReplayBuffer(storage=LazyTensorStorage(s.BUFFER_SIZE), batch_size=s.BATCH_SIZE)
    collector = Collector(
        env, TensorDictSequential(actor, explore), frames_per_batch=s.TRAIN_FREQ, total_frames=steps,
        device="cpu",
    )  # fmt: skip
    recent: deque[float] = deque(maxlen=100)
    updates = seen = 0
    for data in collector:
        explore.step(data.numel())
        seen += data.numel()
        memory.extend(data.reshape(-1))
        over = data["next", "done"].reshape(-1)
        recent.extend(data["next", "episode_reward"].reshape(-1)[over].tolist())
        if seen > s.LEARNING_STARTS:
            loss = loss_of(memory.sample())["loss"]
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(loss_of.parameters(), s.MAX_GRAD_NORM)
            adam.step()
            target.step()
            updates += 1
    collector.shutdown()
    return updates, recent


run(s.WARM_UP)
clock = s.Clock()
done, returns = run(given.steps)
clock.say(given.steps, done, list(returns))
