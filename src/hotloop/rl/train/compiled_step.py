"""One gradient step as a single torch.compile graph: loss, gradient, clipping and Adam, for any network.

The eager step of an algorithm's `TorchLearner` is its twin; `learner="compiled"` replaces it by this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# forward(observations), then the tensors of a batch -> the loss and whatever else the learner wants to know
LossFunction = Callable[..., tuple[Tensor, Any]]


def compile_gradient_step(
    network: nn.Module, adam: torch.optim.Adam, loss_of: LossFunction, max_grad_norm: float | None
) -> Callable[..., tuple[Tensor, Tensor, Any]]:
    """A function of (learning_rate, *batch) that makes one step and returns loss, gradient norm and the rest.

    It changes the weights and the moments in `adam` (see `runs.make_adam`) in place, as `adam.step()` would.
    """
    weights: dict[str, Tensor] = dict(network.named_parameters())
    moments = [adam.state[weight] for weight in weights.values()]
    first = [one["exp_avg"] for one in moments]
    second = [one["exp_avg_sq"] for one in moments]
    (beta1, beta2), eps = adam.defaults["betas"], adam.defaults["eps"]

    @torch.compile(fullgraph=True)
    def step(count: Tensor, learning_rate: Tensor, *batch: Any) -> tuple[Tensor, Tensor, Any]:
        def loss_of_weights(weights: dict[str, Tensor]) -> tuple[Tensor, Any]:
            def forward(observations: Tensor) -> Any:
                return torch.func.functional_call(network, weights, (observations,))

            return loss_of(forward, *batch)

        gradients, (loss, rest) = torch.func.grad_and_value(loss_of_weights, has_aux=True)(weights)
        norm = torch.sqrt(sum((g.square().sum() for g in gradients.values()), torch.zeros(())))
        scale = torch.ones(())
        if max_grad_norm is not None:
            scale = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        step_size = learning_rate / (1.0 - beta1**count)
        root = torch.sqrt(1.0 - beta2**count)
        for (name, weight), m, v in zip(weights.items(), first, second, strict=True):
            gradient = gradients[name] * scale
            m.lerp_(gradient, 1.0 - beta1)
            v.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            weight.sub_(step_size * m / (v.sqrt() / root + eps))
        return loss, norm, rest

    @torch.no_grad()
    def run(learning_rate: float, *batch: Any) -> tuple[Tensor, Tensor, Any]:
        for one in moments:
            one["step"] += 1
        found: tuple[Tensor, Tensor, Any] = step(moments[0]["step"], torch.tensor(learning_rate), *batch)
        return found

    return run
