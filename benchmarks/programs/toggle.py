"""One program, recorded and not recorded in turns inside one process, in random order.

toggle.py sb3|file record|all PAIRS prints pairs of (wall, CPU) seconds, without and with. `record` switches
the recording only; `all` takes everything out in between: the wrappers, their callbacks and the sampler of
source lines. A segment is one or two iterations of PPO; as many, not timed, come after every switch.
"""

import contextlib
import io
import json
import random
import runpy
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from hotloop.instrument.begin import Instrument
from hotloop.instrument.lines import LineSampler
from hotloop.measure.profiler import default

EXAMPLE = Path(__file__).parents[2] / "examples/02_unmodified_ppo.py"


class Switch:
    """Puts recording in and takes it out."""

    def __init__(self, everything, folder):
        self.everything = everything
        self.folder = folder
        self.instrument = self.sampler = None

    def set(self, on):
        if on and self.instrument is None:
            self.instrument = Instrument()
            self.instrument.install()
            self.sampler = LineSampler(default.recorder, self.folder, wait=8)  # as after twenty seconds
            self.sampler.start()
        (default.resume if on else default.pause)()
        if not on and self.everything and self.instrument is not None:
            self.sampler.stop()
            assert self.instrument.remove() == []
            self.instrument = None


def sb3_segment():
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=4, seed=0, device="cpu")

    def segment():
        wall, cpu = time.perf_counter(), time.process_time()
        model.learn(128, reset_num_timesteps=False)
        return time.perf_counter() - wall, time.process_time() - cpu

    return segment


def file_segment():
    sys.argv = [str(EXAMPLE), "--total-steps", "1024"]

    def segment():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        words = out.getvalue().split()  # train_seconds W cpu C ...
        return float(words[1]), float(words[3])

    return segment


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    program, what, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    chance = random.Random(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        default.start()
        switch = Switch(what == "all", Path(folder))
        switch.set(True)
        segment = {"sb3": sb3_segment, "file": file_segment}[program]()
        segment()
        for _ in range(pairs):
            seconds = {}
            for on in chance.sample([True, False], 2):
                switch.set(on)
                segment()
                seconds[on] = segment()
            found.append((seconds[False], seconds[True]))
        switch.everything = True
        switch.set(False)
        default.resume()
        default.stop()
    print(json.dumps(found))
