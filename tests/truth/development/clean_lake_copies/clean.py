# Q-learning on 512 copies of a slippery lake, all in arrays; one table shared by all of them.
import argparse
import json
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120_000)
parser.add_argument("--copies", type=int, default=512)
args = parser.parse_args()

LAKE = ["SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"]
side = len(LAKE)
holes = np.array([c == "H" for row in LAKE for c in row])
goal = side * side - 1
cells = np.arange(side * side)
rows, cols = cells // side, cells % side
table = np.empty((side * side, 4), np.int64)  # next cell by cell and direction
for direction, (dr, dc) in enumerate([(0, -1), (1, 0), (0, 1), (-1, 0)]):
    table[:, direction] = np.clip(rows + dr, 0, side - 1) * side + np.clip(cols + dc, 0, side - 1)

rng = np.random.default_rng(0)
q = 0.01 * rng.random((side * side, 4))
state = np.zeros(args.copies, np.int64)
for step in range(args.steps):
    if step == args.steps // 5:
        t0 = time.perf_counter()
    action = q[state].argmax(1)
    random = rng.random(args.copies) < 0.2
    action[random] = rng.integers(0, 4, int(random.sum()))
    following = table[state, (action + rng.integers(-1, 2, args.copies)) % 4]
    reward = (following == goal).astype(np.float64)
    over = holes[following] | (following == goal)
    target = reward + 0.99 * ~over * q[following].max(1)
    q[state, action] += 0.05 * (target - q[state, action])
    state = np.where(over, 0, following)
speed = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": float(q.sum())}))
