"""Course project: DQN with random shifts (DrQ) that catches falling fruit, from 2 stacked grey pictures."""
import argparse, json, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 40


class FruitBasket:
    """n independent games. A 3-pixel basket at the bottom, one fruit falls; actions left, stay, right."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.fruit = np.stack([rng.integers(0, SIDE, n), rng.integers(0, SIDE // 2, n)], axis=1)
        self.basket = np.full(n, SIDE // 2)
        self.frames = np.zeros((n, 2, SIDE, SIDE), np.uint8)
        self.paint()
        self.paint()

    def paint(self):
        self.frames[:, 0] = self.frames[:, 1]
        canvas = self.frames[:, 1]
        canvas[:] = 0
        games = np.arange(self.n)
        canvas[games, self.fruit[:, 1], self.fruit[:, 0]] = 255
        for dx in (-1, 0, 1):
            canvas[games, SIDE - 1, np.clip(self.basket + dx, 0, SIDE - 1)] = 160

    def step(self, action):
        self.basket = np.clip(self.basket + 2 * (action - 1), 1, SIDE - 2)
        self.fruit[:, 1] += 2
        landed = self.fruit[:, 1] >= SIDE - 1
        caught = landed & (np.abs(self.fruit[:, 0] - self.basket) <= 2)
        reward = np.where(caught, 1.0, np.where(landed, -1.0, 0.0)).astype(np.float32)
        k = int(landed.sum())
        self.fruit[landed, 0] = self.rng.integers(0, SIDE, k)
        self.fruit[landed, 1] = 0
        self.paint()
        return self.frames.copy(), reward, landed


class ConvQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2, 16, 8, stride=4), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 16, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, pixels):
        return self.head(self.conv(pixels))


def random_shift(pictures, rng, pad=4):
    """Moves every picture by up to `pad` pixels in both directions and gives a float tensor."""
    n, _, h, w = pictures.shape
    offsets = rng.integers(0, 2 * pad + 1, size=(n, 2))
    shifted = np.empty_like(pictures)
    for i, (dy, dx) in enumerate(offsets):
        framed = np.pad(pictures[i], ((0, 0), (pad, pad), (pad, pad)), mode="edge")
        shifted[i] = framed[:, dy:dy + h, dx:dx + w]
    return torch.from_numpy(shifted).float().div_(255)


def learn(net, target, opt, store, filled, batch, rng, gamma=0.95):
    idx = rng.integers(0, filled, size=batch)
    now, nxt = random_shift(store["now"][idx], rng), random_shift(store["next"][idx], rng)
    act = torch.from_numpy(store["act"][idx])
    rew = torch.from_numpy(store["rew"][idx])
    end = torch.from_numpy(store["end"][idx])
    with torch.no_grad():
        goal = rew + gamma * (1 - end) * target(nxt).max(dim=1).values
    q = net(now).gather(1, act[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8000)
    p.add_argument("--games", type=int, default=8)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--memory", type=int, default=8000)
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    game = FruitBasket(args.games, rng)
    net, target = ConvQ(), ConvQ()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    store = {"now": np.zeros((args.memory, 2, SIDE, SIDE), np.uint8), "next": np.zeros((args.memory, 2, SIDE, SIDE), np.uint8),
             "act": np.zeros(args.memory, np.int64), "rew": np.zeros(args.memory, np.float32),
             "end": np.zeros(args.memory, np.float32)}
    seen, updates, average = 0, 0, 0.0
    frames = game.frames.copy()
    begin = args.steps // 5
    for step in range(args.steps):
        if step == begin:
            clock = time.perf_counter()
        with torch.no_grad():
            greedy = net(torch.from_numpy(frames).float().div_(255)).argmax(dim=1).numpy()
        eps = max(0.05, 1.0 - 2.0 * step / args.steps)
        action = np.where(rng.random(args.games) < eps, rng.integers(0, 3, args.games), greedy)
        following, reward, end = game.step(action)
        where = np.arange(seen, seen + args.games) % args.memory
        for key, value in (("now", frames), ("next", following), ("act", action), ("rew", reward), ("end", end)):
            store[key][where] = value
        seen += args.games
        frames = following
        if end.any():
            average += 0.02 * (reward[end].mean() - average)
        if seen > 1000:
            learn(net, target, opt, store, min(seen, args.memory), args.batch, rng)
            updates += 1
            if updates % 200 == 0:
                target.load_state_dict(net.state_dict())
                print(f"step {step}: catches {average:+.2f}", flush=True)
    rate = (args.steps - begin) / (time.perf_counter() - clock)
    checksum = float(sum(w.detach().double().abs().sum() for w in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": round(checksum, 5)}))


main()
