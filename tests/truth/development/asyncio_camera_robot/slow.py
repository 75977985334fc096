"""Q-learning on features of a robot's camera. The simulator is another process and talks over a local socket.

The simulator is this same file, started with --simulate.
"""

import argparse
import asyncio
import json
import sys
import time

import numpy as np

H, W = 36, 48
N_ACTIONS = 4


class Arena:
    """A robot drives over a floor with a bright beacon; the camera shows the floor around it."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:128, 0:128]
        self.floor = (40 + 20 * np.sin(x / 9) * np.cos(y / 7)).astype(np.uint8)

    def reset(self):
        self.pos = self.rng.integers(0, [128 - H, 128 - W])
        self.goal = self.rng.integers(0, [128 - H, 128 - W])
        self.k = 0
        self.map = self.floor.copy()
        gy, gx = self.goal[0] + H // 2, self.goal[1] + W // 2
        self.map[gy - 6 : gy + 6, gx - 6 : gx + 6] = 255
        return self.view()

    def view(self):
        y, x = self.pos
        return self.map[y : y + H, x : x + W]

    def step(self, action):
        before = np.abs(self.pos - self.goal).sum()
        move = ((-4, 0), (4, 0), (0, -4), (0, 4))[action]
        self.pos = np.clip(self.pos + move, 0, [127 - H, 127 - W])
        self.k += 1
        now = np.abs(self.pos - self.goal).sum()
        return self.view(), float(before - now) / 4, bool(now < 6 or self.k >= 120)


def encode(message):
    if "image" in message:
        message = dict(message, image=message["image"].tolist())
    return json.dumps(message).encode()


def decode(data):
    message = json.loads(data)
    if "image" in message:
        message["image"] = np.array(message["image"], dtype=np.uint8)
    return message


async def send(writer, message):
    data = encode(message)
    writer.write(len(data).to_bytes(4, "little") + data)
    await writer.drain()


async def receive(reader):
    size = int.from_bytes(await reader.readexactly(4), "little")
    return decode(await reader.readexactly(size))


async def simulate(port, seed):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    arena = Arena(seed)
    await send(writer, {"image": arena.reset(), "reward": 0.0, "done": False})
    while True:
        command = await receive(reader)
        if command["action"] is None:
            writer.close()
            return
        image, reward, done = arena.step(command["action"])
        if done:
            image = arena.reset()
        await send(writer, {"image": image, "reward": reward, "done": done})


class LinearQ:
    def __init__(self, n_features, rng):
        self.w = np.zeros((N_ACTIONS, n_features), np.float32)
        self.rng = rng

    def features(self, image):
        cells = image.reshape(6, H // 6, 6, W // 6).mean((1, 3), dtype=np.float32).ravel() / 255
        return np.concatenate([cells, cells**2, np.float32([1.0])])

    def act(self, phi, epsilon):
        if self.rng.random() < epsilon:
            return int(self.rng.integers(N_ACTIONS))
        return int((self.w @ phi).argmax())

    def learn(self, phi, action, reward, phi2, done, alpha=0.01, gamma=0.9):
        target = reward + (0.0 if done else gamma * float((self.w @ phi2).max()))
        self.w[action] += alpha * (target - float(self.w[action] @ phi)) * phi


async def train(args):
    connected = asyncio.get_running_loop().create_future()

    async def on_connect(reader, writer):
        connected.set_result((reader, writer))

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    simulator = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--simulate", str(port), "--seed", str(args.seed)
    )
    reader, writer = await connected
    agent = LinearQ(73, np.random.default_rng(args.seed))
    phi = agent.features((await receive(reader))["image"])
    skip = args.steps // 5
    for step in range(args.steps):
        if step == skip:
            start = time.perf_counter()
        action = agent.act(phi, max(0.05, 1 - 2 * step / args.steps))
        await send(writer, {"action": action})
        answer = await receive(reader)
        phi2 = agent.features(answer["image"])
        agent.learn(phi, action, answer["reward"], phi2, answer["done"])
        phi = phi2
    rate = (args.steps - skip) / (time.perf_counter() - start)
    await send(writer, {"action": None})
    await simulator.wait()
    server.close()
    print(
        json.dumps(
            {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(agent.w.sum())}
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--simulate", type=int, default=None, metavar="PORT")
    arguments = parser.parse_args()
    if arguments.simulate:
        asyncio.run(simulate(arguments.simulate, arguments.seed))
    else:
        asyncio.run(train(arguments))
