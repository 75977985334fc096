"""DQN for CartPole.

Loosely follows the PyTorch tutorial, with a longer memory and a warm-up of random play.
"""

import json
import random
import sys
import time
from collections import deque, namedtuple

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import nn

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward", "not_done"))

BATCH_SIZE = 128
GAMMA = 0.99
EPS_START, EPS_END, EPS_DECAY = 0.9, 0.05, 4000
TAU = 0.005
LR = 3e-4
MEMORY = 500_000
WARMUP = 400_000
WARMUP_ENVS = 500
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 3000


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class QNet(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.l1 = nn.Linear(n_obs, 128)
        self.l2 = nn.Linear(128, 128)
        self.l3 = nn.Linear(128, n_act)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


random.seed(7)
torch.manual_seed(7)
torch.set_num_threads(1)

env = gym.make("CartPole-v1")
n_actions = int(env.action_space.n)
policy_net = QNet(4, n_actions)
target_net = QNet(4, n_actions)
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(MEMORY)


def select_action(state, t):
    eps = EPS_END + (EPS_START - EPS_END) * 2.718281828 ** (-t / EPS_DECAY)
    if random.random() < eps:
        return random.randrange(n_actions)
    with torch.no_grad():
        return int(policy_net(torch.from_numpy(state)).argmax())


def optimize_model():
    batch = Transition(*zip(*memory.sample(BATCH_SIZE), strict=True))
    state = torch.frombuffer(bytearray(b"".join(batch.state)), dtype=torch.float32).view(BATCH_SIZE, 4)
    next_state = torch.frombuffer(bytearray(b"".join(batch.next_state)), dtype=torch.float32).view(
        BATCH_SIZE, 4
    )
    action = torch.tensor(batch.action).unsqueeze(1)
    reward = torch.tensor(batch.reward)
    not_done = torch.tensor(batch.not_done)

    q = policy_net(state).gather(1, action).squeeze(1)
    with torch.no_grad():
        target = reward + GAMMA * not_done * target_net(next_state).max(1).values
    loss = F.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, tp in zip(policy_net.parameters(), target_net.parameters(), strict=True):
            tp.lerp_(p, TAU)
    return loss


def fill_memory():
    # random play so that the memory is not dominated by the first policy
    envs = gym.make_vec("CartPole-v1", num_envs=WARMUP_ENVS, vectorization_mode="vector_entry_point")
    envs.action_space.seed(7)
    states, _ = envs.reset(seed=7)
    for _ in range(WARMUP // WARMUP_ENVS):
        actions = envs.action_space.sample()
        nxts, rewards, terminated, _, _ = envs.step(actions)
        for s, a, n, r, d in zip(
            states, actions.tolist(), nxts, rewards.tolist(), terminated.tolist(), strict=True
        ):
            memory.push(s.tobytes(), a, n.tobytes(), r, 1.0 - d)
        states = nxts
    envs.close()


print("filling the memory ...")
fill_memory()
print("training ...")
state, _ = env.reset(seed=7)
ep_ret, episodes = 0.0, 0
start, start_t = time.perf_counter(), 0
for t in range(STEPS):
    if t == STEPS // 5:
        start, start_t = time.perf_counter(), t
    action = select_action(state, t)
    nxt, reward, terminated, truncated, _ = env.step(action)
    memory.push(state.tobytes(), action, nxt.tobytes(), float(reward), 1.0 - float(terminated))
    ep_ret += float(reward)
    state = nxt
    optimize_model()
    if terminated or truncated:
        episodes += 1
        print(f"t={t} episode {episodes} return {ep_ret:.0f}")
        ep_ret = 0.0
        state, _ = env.reset()

elapsed = time.perf_counter() - start
result = {
    "env_steps": WARMUP + STEPS,
    "updates": STEPS,
    "units_per_s": (STEPS - start_t) / elapsed,
    "checksum": sum(float(p.double().sum()) for p in [*policy_net.parameters(), *target_net.parameters()]),
}
print(json.dumps(result))
