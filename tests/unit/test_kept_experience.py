"""Functions that collect experience return numbers, too, and training needs every call."""

from __future__ import annotations

import pytest

from hotloop.analysis.advice.kept_experience import keeps_experience

EVALUATE = """\
def evaluate(policy, env, episodes):
    returns = []
    for _ in range(episodes):
        obs, _ = env.reset()
        total, done, trajectory = 0.0, False, []
        while not done:
            action = policy(torch.as_tensor(obs))
            obs, reward, terminated, truncated, _ = env.step(action)
            trajectory.append(obs)
            total += reward
            done = terminated or truncated
        returns.append(total)
    log.append(np.mean(returns))
    return np.mean(returns)
"""


COLLECTING = [
    # DAgger: arrays of its own, which go into the data set
    """\
def collect(self, n):
    seen = np.empty((n, 4))
    for i in range(n):
        seen[i] = self.obs
        self.obs, _, done, _, _ = self.env.step(expert(self.obs))
        crashes += done
    self.data.extend(seen)
    return crashes
""",
    """\
def play(env, memory):
    s, _ = env.reset()
    while not done:
        s2, r, done, _, _ = env.step(act(s))
        memory.push(s, r, s2)
        s = s2
        total += r
    return total
""",
    """\
def run(env, buffer):
    obs, rows = env.reset(), []
    for t in range(9):
        obs, r, d, i = env.step(0)
        rows.append((obs, r))
    buffer.add_episode(rows)
    return float(r)
""",
    """\
def rollout(self):
    for t in range(9):
        self.buffer[t] = obs
        obs, r, d, t, i = self.env.step(0)
    return self.rewards.mean()
""",
    # it goes on where it stopped
    """\
def advance(self):
    self.obs, r, d, t, i = self.env.step(self.act(self.obs))
    return float(r)
""",
]
KEEPING_NOTHING = [
    EVALUATE,
    EVALUATE.replace("log.append", "self.history.append"),
    "def score(env):\n    env.reset()\n    return sum(env.step(a)[1] for a in plan)",
    """\
def evaluate(self):
    obs = self.env.reset()
    frames.append(self.env.render())
    return float(obs.sum())
""",
    "not python (",
]


@pytest.mark.parametrize("source", COLLECTING)
def test_what_keeps_observations_collects(source: str) -> None:
    assert keeps_experience(source)


@pytest.mark.parametrize("source", KEEPING_NOTHING)
def test_evaluations_keep_nothing_of_what_they_see(source: str) -> None:
    assert not keeps_experience(source)
