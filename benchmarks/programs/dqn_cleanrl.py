"""A DQN in one file in the style of CleanRL: Gymnasium's env, Stable-Baselines3's replay, one Python loop."""

import random
from collections import deque

import dqn_settings as s
import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

given = s.arguments()
torch.set_num_threads(1)
torch.manual_seed(given.seed)
random.seed(given.seed)


def network() -> nn.Module:
    h = s.WIDTH
    return nn.Sequential(nn.Linear(4, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 2))


def run(steps: int) -> tuple[int, deque[float]]:
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(given.env))],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    adam = torch.optim.Adam(online.parameters(), lr=s.LEARNING_RATE)
    replay = ReplayBuffer(
        s.BUFFER_SIZE,
        envs.single_observation_space,
        envs.single_action_space,
        "cpu",
        handle_timeout_termination=False,
    )
    recent: deque[float] = deque(maxlen=100)
    updates = 0
    seen, _ = envs.reset(seed=given.seed)
    for step in range(1, steps + 1):
        if random.random() < s.epsilon(step, steps):
            actions = np.array([envs.single_action_space.sample()])
        else:
            actions = torch.argmax(online(torch.Tensor(seen)), dim=1).numpy()
        after, rewards, terminated, truncated, infos = envs.step(actions)
        real = after.copy()
        for row in np.flatnonzero(terminated | truncated):
            real[row] = infos["final_obs"][row]
            recent.append(float(infos["final_info"]["episode"]["r"][row]))
        replay.add(seen, real, actions, rewards, terminated, [{}])
        seen = after
        if step > s.LEARNING_STARTS and step % s.TRAIN_FREQ == 0:
            data = replay.sample(s.BATCH_SIZE)
            with torch.no_grad():
                best = target(data.next_observations).max(dim=1).values
                wanted = data.rewards.flatten() + s.GAMMA * best * (1 - data.dones.flatten())
            values = online(data.observations).gather(1, data.actions).squeeze()
            loss = nn.functional.smooth_l1_loss(values, wanted)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), s.MAX_GRAD_NORM)
            adam.step()
            updates += 1
        if step % s.TARGET_UPDATE_INTERVAL == 0:
            target.load_state_dict(online.state_dict())
    return updates, recent


run(s.WARM_UP)
clock = s.Clock()
done, returns = run(given.steps)
clock.say(given.steps, done, list(returns))
