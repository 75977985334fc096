"""Functions that collect experience return numbers, too; calling them less often would be another training."""

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


@pytest.mark.parametrize(
    "source",
    [
        # DAgger: arrays of its own, which go into the data set
        "def collect(self, n):\n    seen = np.empty((n, 4))\n    for i in range(n):\n        seen[i] = self.obs\n"
        "        self.obs, _, done, _, _ = self.env.step(expert(self.obs))\n        crashes += done\n"
        "    self.data.extend(seen)\n    return crashes",
        "def play(env, memory):\n    s, _ = env.reset()\n    while True:\n        s2, r, d, t, _ = env.step(act(s))\n"
        "        memory.push(s, r, s2)\n        s = s2\n        total += r\n    return total",
        "def run(env, buffer):\n    obs = env.reset()\n    rows = []\n    for t in range(9):\n        rows.append((obs, 1))\n"
        "        obs, r, d, i = env.step(0)\n    buffer.add_episode(rows)\n    return float(r)",
        "def rollout(self):\n    for t in range(9):\n        self.buf[t] = obs\n        obs, r, d, t, i = self.env.step(0)\n"
        "    return self.rew.mean()",
        # it goes on where it stopped
        "def advance(self):\n    self.obs, r, d, t, i = self.env.step(self.act(self.obs))\n    return float(r)",
    ],
)
def test_what_keeps_observations_collects(source: str) -> None:
    assert keeps_experience(source)


@pytest.mark.parametrize(
    "source",
    [
        EVALUATE,
        EVALUATE.replace("log.append", "self.history.append"),
        "def score(env):\n    env.reset()\n    return sum(env.step(a)[1] for a in plan)",
        "def evaluate(self):\n    obs = self.env.reset()\n    frames.append(self.env.render())\n    return float(obs.sum())",
        "not python (",
    ],
)
def test_evaluations_keep_nothing_of_what_they_see(source: str) -> None:
    assert not keeps_experience(source)
