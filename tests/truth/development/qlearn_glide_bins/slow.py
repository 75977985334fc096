# Q-learning on MountainCar with the state cut into bins.
import gymnasium as gym
import numpy as np
import json
import sys
import time

N_POS = 18
N_VEL = 14
ALPHA = 0.1
GAMMA = 0.99
MAX_STEPS = 200


def discretize(obs):
    """Turn position and velocity into two bin numbers"""
    pos_bins = np.linspace(-1.2, 0.6, N_POS - 1)
    vel_bins = np.linspace(-0.07, 0.07, N_VEL - 1)
    return int(pos_bins.searchsorted(obs[0])), int(vel_bins.searchsorted(obs[1]))


class QAgent:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.q = [[[0.0] * 3 for _ in range(N_VEL)] for _ in range(N_POS)]
        self.epsilon = 1.0
        self.updates = 0

    def act(self, state):
        if self.rng.random() < self.epsilon:
            return int(self.rng.random() * 3)
        values = self.q[state[0]][state[1]]
        return values.index(max(values))

    def learn(self, state, action, reward, state2, terminated):
        goal = reward
        if not terminated:
            goal += GAMMA * max(self.q[state2[0]][state2[1]])
        values = self.q[state[0]][state[1]]
        values[action] += ALPHA * (goal - values[action])
        self.updates += 1

    def checksum(self):
        return float(np.abs(np.array(self.q)).sum())


def run_episode(env, agent, seed=None):
    obs, _ = env.reset(seed=seed)
    state = discretize(obs)
    for t in range(1, MAX_STEPS + 1):
        action = agent.act(state)
        obs, reward, terminated, truncated, _ = env.step(action)
        state2 = discretize(obs)
        agent.learn(state, action, reward, state2, terminated)
        state = state2
        if terminated or truncated:
            break
    return t


def main():
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    env = gym.make("MountainCar-v0")
    agent = QAgent(52)
    total, counted, best = 0, 0, MAX_STEPS
    for ep in range(episodes):
        if ep == episodes // 5:
            start, counted = time.perf_counter(), total
        steps = run_episode(env, agent, seed=52 if ep == 0 else None)
        total += steps
        best = min(best, steps)
        agent.epsilon = max(0.05, agent.epsilon - 1.5 / episodes)
        if (ep + 1) % (episodes // 5) == 0:
            print("episode", ep + 1, "last", steps, "best", best, "epsilon", round(agent.epsilon, 2))
    rate = (total - counted) / (time.perf_counter() - start)
    env.close()
    result = {"env_steps": total, "updates": None, "units_per_s": rate, "checksum": agent.checksum()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
