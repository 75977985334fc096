"""`learn()` of SBX (Stable-Baselines3 in JAX) on one thread; prints its speed without compilation as JSON.

For `benchmarks/boost.py --what sbx`, which gives the settings of Stable-Baselines3's own model.
"""

import argparse
import inspect
import json
import os
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import sbx

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("algorithm")
parser.add_argument("env")
parser.add_argument("steps", type=int)
parser.add_argument("settings", type=json.loads)
given = parser.parse_args()

algorithm = getattr(sbx, given.algorithm)
known = inspect.signature(algorithm).parameters
settings = {name: value for name, value in given.settings.items() if name in known}
model = algorithm("MlpPolicy", given.env, seed=0, **settings)
model.learn(given.steps // 2)  # compiles
before = model._n_updates
started, cpu = time.perf_counter(), time.process_time()
model.learn(given.steps)
print(
    json.dumps(
        {
            "seconds": time.perf_counter() - started,
            "cpu_s": time.process_time() - cpu,
            "updates": model._n_updates - before,
        }
    )
)
