"""Advice that says "same results" is followed in a small DQN: its weights must be equal to the bit.

Each setting is what one piece of safe advice asks for; one that is equal up to rounding is followed as well.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hotloop.analysis.explain import explain
from hotloop.testing.planted import DEFECTS

torch = pytest.importorskip("torch")

ENVS, STEPS, BATCH, CAPACITY = 4, 40, 16, 256


@dataclass(frozen=True)
class Switches:
    """How the work is done; every default is the slow way."""

    store_at_once: bool = False  # replay_item_by_item
    gather_at_once: bool = False  # batch_item_by_item
    log_every: int = 1  # logging_too_often
    save_every: int = 1  # checkpoint_too_often
    report_every: int = 1  # reports_too_often
    collect_rarely: bool = False  # garbage_collection_pauses


SAFE = {
    "replay_item_by_item": Switches(store_at_once=True),
    "batch_item_by_item": Switches(gather_at_once=True),
    "logging_too_often": Switches(log_every=100),
    "checkpoint_too_often": Switches(save_every=100),
    "reports_too_often": Switches(report_every=10),
    "garbage_collection_pauses": Switches(collect_rarely=True),
}


def train(how: Switches) -> bytes:
    """The weights after training a Q network on made-up transitions."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    memory = np.zeros((CAPACITY, 10), dtype=np.float32)  # observation, action, reward, next observation
    log, filled, losses = io.StringIO(), 0, []
    if how.collect_rarely:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    observations = rng.standard_normal((ENVS, 4)).astype(np.float32)
    for step in range(STEPS):
        batch = torch.as_tensor(observations)
        with torch.no_grad():
            actions = network(batch).argmax(1).numpy()
        following = rng.standard_normal((ENVS, 4)).astype(np.float32)
        rewards = rng.standard_normal(ENVS).astype(np.float32)
        rows = np.concatenate([observations, actions[:, None], rewards[:, None], following], axis=1)
        at = (filled + np.arange(ENVS)) % CAPACITY
        if how.store_at_once:
            memory[at] = rows
        else:
            for place, row in zip(at, rows, strict=True):
                memory[place] = row
        filled += ENVS
        observations = following
        if filled < BATCH:
            continue
        chosen = rng.integers(0, min(filled, CAPACITY), BATCH)
        drawn = torch.as_tensor(
            memory[chosen] if how.gather_at_once else np.stack([memory[i] for i in chosen])
        )
        with torch.no_grad():
            target = drawn[:, 5] + 0.99 * network(drawn[:, 6:]).max(1).values
        value = network(drawn[:, :4]).gather(1, drawn[:, 4:5].long())[:, 0]
        loss = (value - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % how.log_every == 0:
            print(step, filled, file=log)
        if step % how.save_every == 0:
            torch.save(network.state_dict(), io.BytesIO())
        if step % how.report_every == 0:  # as Ray Train does: metrics and a checkpoint go to another process
            pickle.loads(pickle.dumps(({"loss": losses[-1]}, network.state_dict())))
    return weights_of(network)


def weights_of(network: Any) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in network.parameters())


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """One thread, and the garbage collector as it was."""
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("name", SAFE)
def test_safe_advice_keeps_the_weights_equal_to_the_bit(name: str) -> None:
    assert train(SAFE[name]) == train(Switches())


def test_the_weights_can_differ() -> None:
    """One update more or less is seen, so the comparison above means something."""
    global STEPS
    before = train(Switches())
    STEPS += 1
    try:
        assert train(Switches()) != before
    finally:
        STEPS -= 1


def test_all_safe_advice_has_been_followed() -> None:
    first = [explain(defect()[0]).recommendations[0] for defect in DEFECTS]
    assert {one.name for one in first if one.safety == "safe"} == set(SAFE)


def test_one_thread_is_equal_up_to_rounding() -> None:
    threads = replace(Switches(), store_at_once=True)
    alone = np.frombuffer(train(threads), dtype=np.float32)
    torch.set_num_threads(2)
    np.testing.assert_allclose(np.frombuffer(train(threads), dtype=np.float32), alone, rtol=1e-4, atol=1e-6)
