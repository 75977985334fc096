"""One program, recorded and not recorded in turns inside one process, in random order.

toggle.py sb3|file record|all PAIRS prints, without and with recording, the stretches of every segment in
nanoseconds. `record` switches the recording only, and the sampling of lines with it; `all` takes everything
out in between: also the wrappers and their callbacks. A segment is one iteration of PPO; after `all`, one
that is not timed comes first. A stretch ends where an env begins a step or an optimizer ends one, so the
stretches of all segments correspond to each other, and a pause of the machine spoils one of them and not the
segment.
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
    """Note when an env begins a step and when an optimizer has made one; before anything is wrapped."""
    plain = CartPoleEnv.step

    def step(self, action):
        moments.append(time.perf_counter_ns())
        return plain(self, action)

    CartPoleEnv.step = step  # type: ignore[method-assign]
    register_optimizer_step_post_hook(lambda *given: moments.append(time.perf_counter_ns()))


class Switch:
    """Puts recording in and takes it out."""

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
    """Run it; the times between its moments. What comes before its first env step is not training."""
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
