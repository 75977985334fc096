"""The learner beside its convolutions and products alone: the same operations are counted on both sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hotloop.rl.train.async_dqn import AsyncDQNConfig, FrameLearner
from hotloop.rl.train.learner_limit import measure_learner, noise, products_of
from hotloop.rl.train.networks.frame_q import FrameQNetwork
from hotloop.rl.train.runs import torch_threads

SHAPE, ACTIONS = (4, 36, 36), 5


def small(**given: Any) -> AsyncDQNConfig:
    settings: dict[str, Any] = {"batch_size": 8, "accumulate_grad_batches": 1, "channels": (8, 8, 8)}
    settings |= {"features_dim": 16, "device": "cpu", "precision": "float32"}
    return AsyncDQNConfig(**settings | given)


@pytest.mark.parametrize("layout", ["fast", "plain"])
@pytest.mark.parametrize("double", [True, False])
def test_the_products_alone_are_all_products_of_the_learner(layout: Any, double: bool) -> None:
    config = small(layout=layout, double=double)
    network = FrameQNetwork(SHAPE, ACTIONS, channels=config.channels, features_dim=config.features_dim)
    learner, batch = FrameLearner(network, config), noise(config, SHAPE, ACTIONS)
    products = products_of(network, config, "float32")
    with torch_threads(1):
        with FlopCounterMode(display=False) as of_learner:
            learner.add_gradient(batch)
        with FlopCounterMode(display=False) as alone:
            products()
    assert alone.get_total_flops() == of_learner.get_total_flops() > 0


def test_a_measurement_has_times_of_both_and_leaves_torch_as_it_was() -> None:
    torch.manual_seed(3)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(3)
    limit = measure_learner(small(), SHAPE, ACTIONS, rounds=1)
    assert torch.rand(1) == expected and torch.get_num_threads() == threads
    assert limit.learner_s > 0 and limit.products_s > 0
    assert limit.over_products == limit.learner_s / limit.products_s
    assert (limit.forward_passes, limit.precision) == (3, "float32")
