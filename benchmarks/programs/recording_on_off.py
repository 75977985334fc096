"""Runs a training loop with recording on and off in turn, in random order, inside one process.

    recording_on_off.py sb3|file record|all PAIRS

A segment is one iteration of PPO. Prints the times of all stretches of every segment, in nanoseconds, without
and with recording. `record` pauses and resumes the recording, including the sampling of lines; `all` also
removes and reinstalls the wrappers with their callbacks, followed by segments that are not timed: hotloop
looks at the first 32 calls of each line that calls a network. A stretch ends when an env begins a step or an
optimizer has made one, so stretches of different segments can be compared one by one, and a pause of the
machine affects one stretch instead of the whole segment. HOTLOOP_BENCH_CLOCK=cpu counts the CPU time of the
training thread, for a busy machine.
"""

import contextlib
import io
import itertools
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path

import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from torch.optim.optimizer import register_optimizer_step_post_hook

from hotloop.instrument.libraries import Instrumentation
from hotloop.measure.profiler import default

EXAMPLE = Path(__file__).parents[2] / "examples/02_unmodified_ppo.py"
WARM = 3  # segments that are not timed: 16 gradient steps each
MANY = 1_000_003  # iterations: a number that the example uses for nothing else
now_ns = time.thread_time_ns if os.environ.get("HOTLOOP_BENCH_CLOCK") == "cpu" else time.perf_counter_ns
moments: list[int] = []


def note_moments():
    """Note when an env begins a step and when an optimizer has made one; call it before wrapping anything."""
    plain = CartPoleEnv.step

    def step(self, action):
        moments.append(now_ns())
        return plain(self, action)

    CartPoleEnv.step = step  # type: ignore[method-assign]
    register_optimizer_step_post_hook(lambda *given: moments.append(now_ns()))


class Switch:
    """Turns recording on and off; with `everything`, also installs and removes the wrappers."""

    def __init__(self, everything):
        self.everything = everything
        self.instrument = None

    def set(self, on):
        if on and self.instrument is None:
            self.instrument = Instrumentation()
            self.instrument.install()
        (default.resume if on else default.pause)()
        if not on and self.everything and self.instrument is not None:
            assert self.instrument.remove() == []
            self.instrument = None


def run_sb3(iterations):
    """Train with Stable-Baselines3, one iteration of PPO for each number of `iterations`."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=4, seed=0, device="cpu")
    for _ in iterations:
        model.learn(128, reset_num_timesteps=False)


def run_file(iterations):
    """Train with the example; `iterations` takes the place of the range of its outermost loop."""
    steps = 512 * MANY
    sys.argv = [str(EXAMPLE), "--total-timesteps", str(steps)]
    code = compile(EXAMPLE.read_text(), str(EXAMPLE), "exec")

    def counted(*numbers):
        return iterations if numbers == (MANY,) else range(*numbers)

    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__", "range": counted})


def segments(what, pairs, found):
    """The numbers of iterations; puts the times between the moments of each timed one into `found`."""
    switch = Switch(what == "all")
    switch.set(True)
    yield from range(WARM)
    chance = random.Random(1)
    for _ in range(pairs):
        for on in chance.sample([True, False], 2):
            switch.set(on)
            if what == "all":
                yield from range(WARM)
            moments.clear()
            yield 0
            times = [b - a for a, b in itertools.pairwise(moments)]
            found["on" if on else "off"].append(times)
    switch.everything = True
    switch.set(False)


def main(program, what, pairs):
    torch.set_num_threads(1)
    note_moments()
    found: dict[str, list[list[int]]] = {"off": [], "on": []}
    default.start()
    default.sample_lines()
    {"sb3": run_sb3, "file": run_file}[program](segments(what, pairs, found))
    default.resume()
    default.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
