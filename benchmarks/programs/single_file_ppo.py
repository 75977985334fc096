"""A PPO in one file in the style of CleanRL, with its default settings; does not know hotloop.

`--compiled` compiles acting, advantages and the update with torch.compile, and does what LeanRL does so that
this pays: acting reads weights without gradients, the learning rate is a tensor (as a number, each new one
would compile again), shapes are fixed, distributions check nothing, and rollouts are lists. Prints the speed
without warm-up as JSON, and saves the weights after `--updates` gradient steps if asked.
"""

import argparse
import json
import time
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=20_480)
parser.add_argument("--warm-up", type=int, default=2, help="iterations outside the clock")
parser.add_argument("--updates", type=int, default=0, help="stop after that many gradient steps")
parser.add_argument("--weights", help="file for the weights at the end")
parser.add_argument("--one-ulp", action="store_true", help="move one weight by one unit in the last place")
parser.add_argument("--compiled", action="store_true")
given = parser.parse_args()

N_ENVS, N_STEPS, N_MINIBATCHES, N_EPOCHS = 4, 128, 4, 4
GAMMA, GAE_LAMBDA, CLIP_RANGE, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
LEARNING_RATE = 2.5e-4
ROLLOUT, BATCH_SIZE = N_ENVS * N_STEPS, N_ENVS * N_STEPS // N_MINIBATCHES

np.random.seed(given.seed)  # noqa: NPY002
torch.manual_seed(given.seed)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def act(self, observations, actions=None):
        choice = Categorical(logits=self.actor(observations))
        if actions is None:
            actions = choice.sample()
        return actions, choice.log_prob(actions), choice.entropy(), self.critic(observations)


envs = gymnasium.vector.SyncVectorEnv(
    [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(given.env))] * N_ENVS,
    autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
)
spaces: Any = (envs.single_observation_space, envs.single_action_space)
width = spaces[0].shape[0]
agent: Any = Agent(width, int(spaces[1].n))
if given.one_ulp:
    with torch.no_grad():
        first = agent.critic[0].weight.view(-1)
        first[0] = torch.nextafter(first[0], torch.tensor(float("inf")))
rate: Any = torch.tensor(LEARNING_RATE) if given.compiled else LEARNING_RATE
optimizer = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
acting: Any = agent
if given.compiled:
    acting = Agent(width, int(spaces[1].n)).requires_grad_(False)
    for mine, trained in zip(acting.parameters(), agent.parameters(), strict=True):
        mine.data = trained.data


def collect(observation):
    with torch.no_grad():
        action, log_prob, _, value = acting.act(observation)
        return action, log_prob, value.flatten()


def advantages_of(rewards, values, dones, last_value, last_done):
    advantages, following = torch.zeros_like(rewards), 0
    for step in reversed(range(N_STEPS)):
        goes_on = 1.0 - (last_done if step == N_STEPS - 1 else dones[step + 1])
        after = last_value if step == N_STEPS - 1 else values[step + 1]
        error = rewards[step] + GAMMA * after * goes_on - values[step]
        advantages[step] = following = error + GAMMA * GAE_LAMBDA * goes_on * following
    return advantages


def compiled_advantages_of(rewards, values, dones, last_value, last_done):
    reversed_advantages, following, after, goes_on = [], 0, last_value, 1.0 - last_done
    for reward, value, done in zip(
        *(reversed(one.unbind(0)) for one in (rewards, values, dones)), strict=True
    ):
        error = reward + GAMMA * after * goes_on - value
        following = error + GAMMA * GAE_LAMBDA * goes_on * following
        reversed_advantages.append(following)
        after, goes_on = value, 1.0 - done
    return torch.stack(reversed_advantages[::-1])


def update(observation, action, old_log_prob, advantage, target, old_value):
    _, log_prob, entropy, value = agent.act(observation, action)
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    with torch.no_grad():
        approx_kl = ((ratio - 1) - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > CLIP_RANGE).float().mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = torch.max(
        -advantage * ratio, -advantage * torch.clamp(ratio, 1 - CLIP_RANGE, 1 + CLIP_RANGE)
    ).mean()
    value = value.view(-1)
    clipped = old_value + torch.clamp(value - old_value, -CLIP_RANGE, CLIP_RANGE)
    value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
    loss = policy_loss - ENT_COEF * entropy.mean() + VF_COEF * value_loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    return approx_kl, clip_fraction


if given.compiled:
    torch.distributions.Distribution.set_default_validate_args(False)
    collect, update = torch.compile(collect), torch.compile(update)
    advantages_of = torch.compile(compiled_advantages_of, fullgraph=True)


def room(*shape: int) -> Any:
    return [None] * N_STEPS if given.compiled else torch.zeros(N_STEPS, N_ENVS, *shape)


observations = room(width)
actions, log_probs, rewards, dones, values = (room() for _ in range(5))
recent: deque[float] = deque(maxlen=100)
seen = torch.Tensor(envs.reset(seed=given.seed)[0])
done = torch.zeros(N_ENVS)
updates = 0


def iteration(number: int, iterations: int) -> None:
    global seen, done, updates
    rate_now = (1.0 - number / iterations) * LEARNING_RATE
    if given.compiled:
        rate.fill_(rate_now)
    else:
        optimizer.param_groups[0]["lr"] = rate_now
    for step in range(N_STEPS):
        observations[step], dones[step] = seen, done
        action, log_prob, value = collect(seen)
        actions[step], log_probs[step], values[step] = action, log_prob, value
        after, reward, terminated, truncated, infos = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward).view(-1)
        seen, done = torch.Tensor(after), torch.Tensor(np.logical_or(terminated, truncated))
        if "final_info" in infos:
            finished = infos["final_info"]["episode"]
            recent.extend(finished["r"][finished["_r"]].tolist())
    rollout: Any = (observations, actions, log_probs, rewards, dones, values)
    if given.compiled:
        rollout = [torch.stack(one) for one in rollout]
    with torch.no_grad():
        last_value = acting.critic(seen).reshape(1, -1).flatten()
        advantages = advantages_of(rollout[3], rollout[5], rollout[4], last_value, done)
        returns = advantages + rollout[5]
    flat = [one.reshape(ROLLOUT, *one.shape[2:]) for one in rollout[:3]]
    flat[1] = flat[1].long()
    flat += [one.reshape(-1) for one in (advantages, returns, rollout[5])]
    rows = np.arange(ROLLOUT)
    for _ in range(N_EPOCHS):
        np.random.shuffle(rows)  # noqa: NPY002
        for start in range(0, ROLLOUT, BATCH_SIZE):
            batch: Any = rows[start : start + BATCH_SIZE]
            batch = torch.from_numpy(batch) if given.compiled else batch
            approx_kl, clip_fraction = update(*(one[batch] for one in flat))
            if not given.compiled:
                approx_kl.item(), clip_fraction.item()
            updates += 1
            if updates == given.updates:
                return


iterations = given.total_timesteps // ROLLOUT
started, cpu = time.perf_counter(), time.process_time()
for number in range(iterations):
    if number == given.warm_up:
        started, cpu = time.perf_counter(), time.process_time()
    iteration(number, iterations)
    if updates == given.updates:
        break
took, cpu_s = time.perf_counter() - started, time.process_time() - cpu
if given.weights:
    np.save(given.weights, np.concatenate([one.detach().numpy().ravel() for one in agent.parameters()]))
env_steps = (iterations - given.warm_up) * ROLLOUT
mean_return = float(np.mean(recent)) if recent else None
print(json.dumps({
    "env_steps": env_steps, "seconds": took, "cpu_s": cpu_s, "updates": updates, "mean_return": mean_return,
    "random": [float(np.random.random()), torch.rand(1).item()],  # noqa: NPY002
}))  # fmt: skip
