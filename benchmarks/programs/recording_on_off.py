"""Runs a training loop with recording on and off in turn, in random order, inside one process.

    recording_on_off.py sb3|file record|all PAIRS

A segment is one iteration of PPO. Prints the times of all stretches of every segment, in nanoseconds, without
and with recording. `record` pauses and resumes the recording, including the sampling of lines; `all` also
removes and reinstalls the wrappers with their callbacks, followed by one segment that is not timed. A stretch
ends when an env begins a step or an optimizer has made one, so stretches of different segments can be
compared one by one, and a pause of the machine affects one stretch instead of the whole segment.
"""

import contextlib
import io
import itertools
import json
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
moments: list[int] = []


def note_moments():
    """Note when an env begins a step and when an optimizer has made one; call it before wrapping anything."""
    plain = CartPoleEnv.step

    def step(self, action):
        moments.append(time.perf_counter_ns())
        return plain(self, action)

    CartPoleEnv.step = step  # type: ignore[method-assign]
    register_optimizer_step_post_hook(lambda *given: moments.append(time.perf_counter_ns()))


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


def sb3_segment():
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=4, seed=0, device="cpu")
    return lambda: model.learn(128, reset_num_timesteps=False)


def file_segment():
    sys.argv = [str(EXAMPLE), "--total-timesteps", "512"]
    code = compile(EXAMPLE.read_text(), str(EXAMPLE), "exec")

    def segment():
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, {"__name__": "__main__"})

    return segment


def stretches(segment):
    """Run the segment; returns the times between its moments, from the first env step on."""
    moments.clear()
    segment()
    return [b - a for a, b in itertools.pairwise(moments)]


def main(program, what, pairs):
    torch.set_num_threads(1)
    note_moments()
    chance = random.Random(1)
    found: dict[str, list[float]] = {"off": [], "on": []}
    default.start()
    default.sample_lines()
    switch = Switch(what == "all")
    switch.set(True)
    segment = {"sb3": sb3_segment, "file": file_segment}[program]()
    segment()
    for _ in range(pairs):
        for on in chance.sample([True, False], 2):
            switch.set(on)
            if what == "all":
                segment()
            found["on" if on else "off"].append(stretches(segment))
    switch.everything = True
    switch.set(False)
    default.resume()
    default.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
