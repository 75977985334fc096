"""`hotloop run` of JAX scripts: jitted calls, waiting for results, and exact counts of optax's updates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.stats import by_name
from tests.processes.library_runs import needs
from tests.processes.scripts import environment

pytestmark = [needs("jax", "optax"), pytest.mark.long]

SCRIPT = """
import functools, json, pickle, copy
import jax, jax.numpy as jnp, numpy as np, optax
from jax import jit

optimizer = optax.adam(1e-2)
params = {"w": jnp.ones((8, 8)), "b": jnp.zeros(8)}
state = optimizer.init(params)
made = {}

def loss_of(params, x):
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)

def update(params, state, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss

@jax.jit
def step(params, state, x):
    return update(params, state, x)

for i in range(20):  # one update for each call
    params, state, loss = step(params, state, jnp.ones((4, 8)))
made["step"] = 20
for i in range(5):  # other shapes are traced again
    params, state, loss = step(params, state, jnp.ones((3, 8)))
made["shapes"] = 5
float(loss), np.asarray(params["w"]), loss.block_until_ready(), jax.block_until_ready(params)

@functools.partial(jit, static_argnames="n")
def epoch(params, state, xs, n):
    def body(carry, x):
        params, state, loss = step(*carry, x)  # jitted inside of jitted
        return (params, state), loss
    carry, losses = jax.lax.scan(body, (params, state), xs)
    def again(i, carry):
        return update(*carry, xs[0])[:2]
    return jax.lax.fori_loop(0, n, again, carry), losses

xs = jnp.ones((6, 4, 8))
for i in range(4):  # 6 in the scan, n in the loop; both at places of their own
    (params, state), losses = epoch(params, state, xs, 6)
made["epoch"] = 4 * 12

class Agent:
    @jax.jit
    def act(self, x):
        return x + 1
    act = jax.jit(lambda self, x: x + 1, static_argnums=0)

agent = Agent()
for i in range(7):
    agent.act(jnp.ones(2))
for i in range(3):  # without jit
    params, state, loss = update(params, state, jnp.ones((4, 8)))
made["eager"] = 3
assert isinstance(step, jax.stages.Wrapped) and step.lower(params, state, xs[0]).compile() is not None
assert step.__name__ == "step" and hash(step) == hash(step) and copy.copy(step) is not None
assert jax.vmap(jax.jit(lambda x: x * 2))(jnp.ones(3)).shape == (3,)
print(json.dumps(made))
"""


def test_jitted_calls_and_updates_are_counted_exactly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "run", "--capture", "run", "train.py"],
        env=environment("auto"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    capture = hotloop.load(tmp_path / "run")
    assert not capture.warnings
    assert capture.progress.updates == sum(made.values())
    found = {name: node.calls for name, node in by_name(capture.tree).items()}
    assert (found["jit step"], found["jit epoch"], found["jit <lambda>"]) == (25, 4, 7 + 1)
    assert found["jax_wait"] >= 3 and found["compile"] >= 4
