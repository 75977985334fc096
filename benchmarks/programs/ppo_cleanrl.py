"""A PPO in one file in the style of CleanRL: Gymnasium's vector env, torch tensors, one Python loop."""

from collections import deque

import gymnasium
import numpy as np
import ppo_settings as s
import torch
from torch import nn
from torch.distributions import Categorical

given = s.arguments()
torch.set_num_threads(1)
torch.manual_seed(given.seed)
np.random.seed(given.seed)  # noqa: NPY002


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        h = s.HIDDEN
        self.actor = nn.Sequential(layer(4, h), nn.Tanh(), layer(h, h), nn.Tanh(), layer(h, 2, 0.01))
        self.critic = nn.Sequential(layer(4, h), nn.Tanh(), layer(h, h), nn.Tanh(), layer(h, 1, 1.0))

    def forward(self, observations, actions=None):
        choice = Categorical(logits=self.actor(observations))
        actions = choice.sample() if actions is None else actions
        return actions, choice.log_prob(actions), choice.entropy(), self.critic(observations).flatten()


envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(
    gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(given.env)] * s.N_ENVS,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
)
agent = Agent()
adam = torch.optim.Adam(agent.parameters(), lr=s.LEARNING_RATE, eps=s.ADAM_EPS)
observations = torch.zeros(s.N_STEPS, s.N_ENVS, 4)
actions = torch.zeros(s.N_STEPS, s.N_ENVS)
log_probs, rewards, dones, values = (torch.zeros(s.N_STEPS, s.N_ENVS) for _ in range(4))
recent: deque[float] = deque(maxlen=100)
first, _ = envs.reset(seed=given.seed)
seen, done = torch.tensor(first), torch.zeros(s.N_ENVS)


def iteration() -> None:
    global seen, done
    for step in range(s.N_STEPS):
        observations[step], dones[step] = seen, done
        with torch.no_grad():
            action, log_prob, _, value = agent(seen)
        actions[step], log_probs[step], values[step] = action, log_prob, value
        after, reward, terminated, truncated, infos = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward)
        seen, done = torch.tensor(after), torch.tensor(terminated | truncated, dtype=torch.float32)
        for source in (infos, infos.get("final_info", {})):
            if "episode" in source:
                recent.extend(source["episode"]["r"][source["_episode"]].tolist())
    with torch.no_grad():
        advantages, following = torch.zeros_like(rewards), torch.zeros(s.N_ENVS)
        value = agent.critic(seen).flatten()
        for step in reversed(range(s.N_STEPS)):
            goes_on = 1.0 - (done if step == s.N_STEPS - 1 else dones[step + 1])
            after_value = value if step == s.N_STEPS - 1 else values[step + 1]
            error = rewards[step] + s.GAMMA * after_value * goes_on - values[step]
            following = error + s.GAMMA * s.GAE_LAMBDA * goes_on * following
            advantages[step] = following
        returns = advantages + values
    flat = [
        one.reshape(s.ROLLOUT, *one.shape[2:])
        for one in (observations, actions, log_probs, advantages, returns)
    ]
    rows = np.arange(s.ROLLOUT)
    for _ in range(s.N_EPOCHS):
        np.random.shuffle(rows)  # noqa: NPY002
        for start in range(0, s.ROLLOUT, s.BATCH_SIZE):
            part = rows[start : start + s.BATCH_SIZE]
            seen_then, acted, old, advantage, target = (one[part] for one in flat)
            _, log_prob, entropy, value = agent(seen_then, acted)
            ratio = (log_prob - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy = torch.max(
                -advantage * ratio, -advantage * ratio.clamp(1 - s.CLIP_RANGE, 1 + s.CLIP_RANGE)
            ).mean()
            loss = policy - s.ENT_COEF * entropy.mean() + s.VF_COEF * (value - target).square().mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), s.MAX_GRAD_NORM)
            adam.step()


for _warm_up in range(s.WARM_UP // s.ROLLOUT):
    iteration()
clock = s.Clock()
iterations = given.steps // s.ROLLOUT
for _iteration in range(iterations):
    iteration()
clock.say(iterations * s.ROLLOUT, iterations * s.N_EPOCHS * s.ROLLOUT // s.BATCH_SIZE, list(recent))
