"""CMA-ES tunes a sail and rudder controller for a small boat on a triangular course. numpy only."""
import json
import math
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 250
HIDDEN = 20
OBS = 7
N_PARAM = OBS * HIDDEN + HIDDEN + HIDDEN * 2 + 2
MARKS = np.array([[40.0, 10.0], [15.0, 45.0], [0.0, 0.0]])
STEPS = 70


def regatta(params, wind_dir, wind_speed):
    """Whole fleet at once: params is (boats, N_PARAM). Returns the negative score of each boat."""
    n = len(params)
    i = OBS * HIDDEN
    w1 = params[:, :i].reshape(n, OBS, HIDDEN)
    b1 = params[:, i:i + HIDDEN]
    j = i + HIDDEN
    w2 = params[:, j:j + 2 * HIDDEN].reshape(n, HIDDEN, 2)
    b2 = params[:, j + 2 * HIDDEN:]
    pos = np.zeros((n, 2))
    heading = np.full(n, 0.4)
    speed = np.zeros(n)
    mark = np.zeros(n, dtype=int)
    score = np.zeros(n)
    for t in range(STEPS):
        to_mark = MARKS[mark % 3] - pos
        dist = np.hypot(to_mark[:, 0], to_mark[:, 1]) + 1e-9
        bearing = np.arctan2(to_mark[:, 1], to_mark[:, 0]) - heading
        wind = wind_dir + 0.3 * math.sin(t / 9.0)
        rel = wind - heading
        obs = np.stack([np.cos(bearing), np.sin(bearing), np.cos(rel), np.sin(rel), speed / 5, dist / 50,
                        np.full(n, wind_speed / 10)], axis=1)
        h = np.tanh(np.einsum("no,noh->nh", obs, w1) + b1)
        act = np.tanh(np.einsum("nh,nha->na", h, w2) + b2)
        sail = 0.5 + 0.5 * act[:, 0]
        angle = np.abs(np.arctan2(np.sin(rel), np.cos(rel)))
        drive = wind_speed * sail * np.clip(np.sin(angle * 0.9), 0.0, 1.0) * (angle > 0.6)
        speed += 0.5 * (0.25 * drive - 0.3 * speed)
        heading = heading + 0.5 * 0.6 * act[:, 1] * np.minimum(speed, 1.5)
        pos += 0.5 * speed[:, None] * np.stack([np.cos(heading), np.sin(heading)], axis=1)
        left = MARKS[mark % 3] - pos
        new = np.hypot(left[:, 0], left[:, 1])
        score += dist - new
        rounded = new < 4.0
        score += 20.0 * rounded
        mark += rounded
    return -score


class CMAES:
    def __init__(self, x0, sigma, popsize, rng):
        self.rng = rng
        n = len(x0)
        self.n, self.lam, self.mu = n, popsize, popsize // 2
        self.mean, self.sigma = x0.copy(), sigma
        w = math.log(self.mu + 0.5) - np.log(np.arange(1, self.mu + 1))
        self.w = w / w.sum()
        self.mueff = 1.0 / (self.w ** 2).sum()
        self.cc = (4 + self.mueff / n) / (n + 4 + 2 * self.mueff / n)
        self.cs = (self.mueff + 2) / (n + self.mueff + 5)
        self.c1 = 2 / ((n + 1.3) ** 2 + self.mueff)
        self.cmu = min(1 - self.c1, 2 * (self.mueff - 2 + 1 / self.mueff) / ((n + 2) ** 2 + self.mueff))
        self.damps = 1 + 2 * max(0, math.sqrt((self.mueff - 1) / (n + 1)) - 1) + self.cs
        self.chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self.pc, self.ps = np.zeros(n), np.zeros(n)
        self.C = np.eye(n)
        self.gen = 0

    def ask(self):
        return self.rng.multivariate_normal(self.mean, self.sigma ** 2 * self.C, size=self.lam, method="cholesky")

    def tell(self, pop, cost):
        self.gen += 1
        order = np.argsort(cost)[: self.mu]
        old = self.mean
        y = (pop[order] - old) / self.sigma
        self.mean = old + self.sigma * (self.w @ y)
        step = (self.mean - old) / self.sigma
        vals, vecs = np.linalg.eigh(self.C)
        inv_sqrt = vecs @ np.diag(1 / np.sqrt(np.maximum(vals, 1e-14))) @ vecs.T
        self.ps = (1 - self.cs) * self.ps + math.sqrt(self.cs * (2 - self.cs) * self.mueff) * (inv_sqrt @ step)
        norm = np.linalg.norm(self.ps)
        hsig = norm / math.sqrt(1 - (1 - self.cs) ** (2 * self.gen)) / self.chi < 1.4 + 2 / (self.n + 1)
        self.pc = (1 - self.cc) * self.pc + hsig * math.sqrt(self.cc * (2 - self.cc) * self.mueff) * step
        rank_mu = (y * self.w[:, None]).T @ y
        self.C = (1 - self.c1 - self.cmu) * self.C + self.c1 * np.outer(self.pc, self.pc) + self.cmu * rank_mu
        self.C = (self.C + self.C.T) / 2
        self.sigma *= math.exp(min(1.0, (self.cs / self.damps) * (norm / self.chi - 1)))


rng = np.random.default_rng(21)
es = CMAES(rng.normal(size=N_PARAM) * 0.1, 0.3, 96, rng)
best, start = math.inf, 0.0
for g in range(GENERATIONS):
    if g == GENERATIONS // 5:
        start = time.perf_counter()
    fleet = es.ask()
    cost = np.mean([regatta(fleet, d, 7.0) for d in (0.5, 2.2)], axis=0)
    es.tell(fleet, cost)
    best = min(best, cost.min())
    if g % 25 == 0:
        print(f"gen {g:3d}  best {-best:8.2f}  mean {-cost.mean():8.2f}  sigma {es.sigma:.3f}")
rate = (GENERATIONS - GENERATIONS // 5) / (time.perf_counter() - start)
print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(best)}))
