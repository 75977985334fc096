"""Adam of the fused learners leaves no denormal numbers, and the same weights as plain Adam."""

from __future__ import annotations

import numpy as np

from hotloop.rl.train.fused import layers

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def test_moments_of_dead_units_become_zero_and_no_weight_differs() -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=64).astype(np.float32)
    grads = rng.normal(size=64).astype(np.float32)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    plain, plain_first, plain_second = weights.astype(float), np.zeros(64), np.zeros(64)
    smallest = np.finfo(np.float32).tiny
    for step in range(1, 1200):
        if step == 20:
            grads[:32] = 0.0  # these units are dead from now on: first moments halve every 7 updates
        layers.adam(weights, grads, first, second, step, RATE, BETA1, BETA2, EPSILON, 1.0)
        plain_first = BETA1 * plain_first + (1 - BETA1) * grads
        plain_second = BETA2 * plain_second + (1 - BETA2) * grads.astype(float) ** 2
        root = np.sqrt(plain_second / (1 - BETA2**step)) + EPSILON
        plain -= RATE / (1 - BETA1**step) * plain_first / root
        for moments in (first, second):
            assert not ((np.abs(moments) < smallest) & (moments != 0)).any(), step
    assert not first[:32].any() and (np.abs(plain_first[:32]) < smallest).all() and plain_first[:32].all()
    assert first[32:].all() and second.all()
    assert np.allclose(weights, plain, rtol=1e-4, atol=1e-4)
