"""Recording switched on and off inside one process, one PPO iteration at a time, in random order."""

import json
import random
import sys
import time

import torch
from stable_baselines3 import PPO

from hotloop.instrument.begin import Instrument
from hotloop.measure.profiler import default

torch.set_num_threads(1)
Instrument().install()
default.start()
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, seed=0, device="cpu")
model.learn(512)  # warm up
chance = random.Random(1)
pairs = []
for _ in range(int(sys.argv[1])):
    seconds = {}
    for on in chance.sample([True, False], 2):
        (default.resume if on else default.pause)()
        began, cpu = time.perf_counter(), time.thread_time()
        model.learn(256, reset_num_timesteps=False)
        seconds[on] = (time.perf_counter() - began, time.thread_time() - cpu)
    pairs.append((seconds[False], seconds[True]))
default.stop()
print(json.dumps(pairs))
