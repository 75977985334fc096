"""`hotloop run` of scripts whose envs are plain classes, or of the old Gym."""

from __future__ import annotations

from pathlib import Path

import pytest

import hotloop
from hotloop.capture.stats import by_name
from tests.processes.library_runs import needs
from tests.processes.test_run_odd import launch

# A `jitclass` of numba reads the methods of a class, and accepts plain functions only.
SCRIPT = """
    import os, time, types
    from dataclasses import dataclass

    def jitclass(cls):
        assert all(isinstance(f, types.FunctionType) for n, f in vars(cls).items() if n[:2] != "__")
        return cls

    class Walk:
        def __init__(self, end=10):
            self.end = end
        def reset(self):
            self.at = 0
            return self.at
        def step(self, action):
            time.sleep(0.0002)
            self.at += 1
            return self.at, 1.0, self.at == self.end, {}

    class Longer(Walk):
        def step(self, action):
            return super().step(action)

    @jitclass
    class Compiled(Walk):
        def step(self, action):
            return super().step(action)

    class Agent:
        def reset(self): ...
        def step(self, observation, action, reward):
            return 0.5
        def act(self, observation):
            return 0

    class Tiny(Walk):
        def step(self, action):
            self.at += 1
            return self.at, 1.0, self.at == self.end

    agent = Agent()
    for env in (Walk(), Longer(5), Compiled(4)):
        for episode in range(6):
            observation, done = env.reset(), False
            agent.reset()
            while not done:
                action = agent.act(observation)
                observation, reward, done, _ = env.step(action)
                agent.step(observation, action, reward)
    if os.environ["HOTLOOP_CORE"] == "compiled":
        tiny = Tiny(200)
        tiny.reset()
        while not tiny.step(0)[2]:
            pass
    assert isinstance(Tiny.step, types.FunctionType) and isinstance(Agent.step, types.FunctionType)
"""


@pytest.mark.parametrize("core", ["compiled", "python"])
def test_steps_of_plain_classes_are_counted_exactly(core: str, tmp_path: Path) -> None:
    done = launch(tmp_path, SCRIPT, HOTLOOP_CORE=core)
    assert done.returncode == 0, done.stderr
    capture = hotloop.load(tmp_path / "cap")
    assert (capture.progress.env_steps, capture.progress.episodes) == (6 * (10 + 5 + 4), 18)
    (process,) = capture.processes
    calls = {name: one.calls for thread in process.threads for name, one in by_name(thread.root).items()}
    # The first steps of each class are looked at before they are recorded as env_step.
    assert 90 < calls["env_step"] <= 114 and calls["env_reset"] >= 15 and calls["Agent.step"] == 1


@needs("gym")
def test_envs_of_the_old_gym_have_steps(tmp_path: Path) -> None:
    script = """
        import warnings
        warnings.simplefilter("ignore")
        import gym

        class Walk(gym.Env):
            action_space = observation_space = gym.spaces.Discrete(2)
            def reset(self, seed=None, options=None):
                self.at = 0
                return 0, {}
            def step(self, action):
                self.at += 1
                return 0, 1.0, self.at == 7, False, {}

        env = gym.Wrapper(Walk())
        for episode in range(20):
            env.reset()
            while not env.step(0)[2]:
                pass
        """
    done = launch(tmp_path, script)
    assert done.returncode == 0, done.stderr
    progress = hotloop.load(tmp_path / "cap").progress
    assert (progress.env_steps, progress.episodes, progress.mean_return) == (140, 20, 7.0)
