"""A rover with a laser scanner lives in its own interpreter (as the real simulator does) and talks over its stdin/stdout.

python slow.py            trains an actor-critic
python slow.py --serve    is what the trainer starts for the simulator
"""
import json
import struct
import subprocess
import sys
import time

import numpy as np

BEAMS, STEPS_PER_EPISODE = 720, 60


class Rover:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.angles = np.linspace(-np.pi, np.pi, BEAMS, endpoint=False)

    def reset(self):
        self.rocks = self.rng.uniform(-4, 4, (6, 2))
        self.pos, self.heading, self.t = np.zeros(2), self.rng.uniform(-np.pi, np.pi), 0
        return self.scan()

    def scan(self):
        """Distance along each beam to the nearest rock (discs of radius 0.5), 5 m at most."""
        d = np.stack([np.cos(self.angles + self.heading), np.sin(self.angles + self.heading)])
        rel = self.rocks - self.pos
        along = rel @ d
        off2 = (rel ** 2).sum(1)[:, None] - along ** 2
        hit = (along > 0) & (off2 < 0.25)
        dist = np.where(hit, along - np.sqrt(np.maximum(0.25 - off2, 0.0)), 5.0)
        return dist.min(0).clip(0.0, 5.0) / 5.0

    def step(self, turn):
        self.heading += 0.3 * turn
        self.pos = self.pos + 0.15 * np.array([np.cos(self.heading), np.sin(self.heading)])
        self.t += 1
        scan = self.scan()
        crash = bool(scan.min() < 0.02)
        reward = -1.0 if crash else 0.1 * float(scan[BEAMS // 2 - 20:BEAMS // 2 + 20].mean())
        return scan, reward, crash or self.t >= STEPS_PER_EPISODE


def send(stream, message):
    raw = json.dumps(message).encode()
    stream.write(struct.pack("<I", len(raw)) + raw)
    stream.flush()


def receive(stream):
    head = stream.read(4)
    if len(head) < 4:
        return None
    return json.loads(stream.read(struct.unpack("<I", head)[0]))


def pack(scan, reward, done):
    return {"scan": scan.tolist(), "reward": reward, "done": done}


def unpack(message):
    return np.array(message["scan"]), message["reward"], message["done"]


def serve():
    rover, inp, out = Rover(17), sys.stdin.buffer, sys.stdout.buffer
    while (msg := receive(inp)) is not None:
        if msg["cmd"] == "reset":
            send(out, pack(rover.reset(), 0.0, False))
        else:
            send(out, pack(*rover.step(msg["turn"])))


class Remote:
    def __init__(self):
        self.child = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **message):
        send(self.child.stdin, message)
        return unpack(receive(self.child.stdout))

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def train(episodes):
    import torch
    from torch import nn
    torch.set_num_threads(1)
    torch.manual_seed(17)
    net = nn.Sequential(nn.Linear(BEAMS, 64), nn.Tanh(), nn.Linear(64, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    sim, steps, t0, s0 = Remote(), 0, None, 0
    for ep in range(episodes):
        if ep == episodes // 5:
            t0, s0 = time.perf_counter(), steps
        scans, acts, rews = [], [], []
        scan, _, done = sim.ask(cmd="reset")
        while not done:
            x = torch.from_numpy(scan).float()
            with torch.no_grad():
                a = torch.multinomial(net(x)[:3].softmax(-1), 1).item()
            scans.append(x)
            scan, r, done = sim.ask(cmd="step", turn=a - 1)
            acts.append(a)
            rews.append(r)
            steps += 1
        ret, g = np.zeros(len(rews), np.float32), 0.0
        for t in reversed(range(len(rews))):
            ret[t] = g = rews[t] + 0.98 * g
        out = net(torch.stack(scans))
        ret = torch.from_numpy(ret)
        adv = ret - out[:, 3].detach()
        logp = out[:, :3].log_softmax(-1).gather(1, torch.tensor(acts)[:, None]).squeeze(1)
        loss = -(logp * adv).mean() + 0.5 * (out[:, 3] - ret).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    rate = (steps - s0) / (time.perf_counter() - t0)
    sim.close()
    check = sum(p.detach().double().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": None, "updates": episodes, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        train(int(sys.argv[1]) if len(sys.argv) > 1 else 130)
