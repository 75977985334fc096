"""What a backward pass saves without the gradients of networks that it only goes through.

    OMP_NUM_THREADS=1 python benchmarks/discarded_gradients.py

Every operation of the pass is timed, as recordings do; then the pass is timed as a whole, with these networks
frozen around forward and backward pass, and with `backward(inputs=...)`. CPU times of the thread, medians of
alternating passes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hotloop.instrument.gradient_fates import GradientFates
from hotloop.instrument.unused_gradients import _Graph, _Look, _Pass, _Watch

PASSES = 40
Case = tuple[Callable[[], Any], nn.Module, list[nn.Module]]  # loss, trained, gone through


def mlp(inputs: int, outputs: int, layers: int = 2) -> nn.Sequential:
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), *hidden, nn.Linear(128, outputs))


def imagined_steps() -> Case:
    cell, prior, actor, critic = nn.GRUCell(128, 128), mlp(129, 128, 1), mlp(128, 1, 1), mlp(128, 1, 1)
    start = torch.randn(288, 128)

    def loss() -> Any:
        state, states = start, []
        for _ in range(15):
            state = cell(prior(torch.cat([state, actor(state).tanh()], 1)), state)
            states.append(state)
        return -critic(torch.stack(states)).mean()

    return loss, actor, [cell, prior, critic]


def critic_of_all_agents() -> Case:
    actor, critic = mlp(8, 2), mlp(30, 1)
    obs, actions = torch.randn(256, 3, 8), torch.randn(256, 4)

    def loss() -> Any:
        return -critic(torch.cat([obs.flatten(1), actions, actor(obs[:, 0]).tanh()], 1)).mean()

    return loss, actor, [critic]


def twin_critics() -> Case:
    actor, first, second = mlp(17, 6), mlp(23, 1), mlp(23, 1)
    obs = torch.randn(256, 17)

    def loss() -> Any:
        both = torch.cat([obs, actor(obs).tanh()], 1)
        return -torch.min(first(both), second(both)).mean()

    return loss, actor, [first, second]


def measure(case: Case) -> dict[str, float]:
    loss_of, trained, others = case
    times: dict[str, list[int]] = {}

    def note(name: str, began: int) -> None:
        times.setdefault(name, []).append(time.thread_time_ns() - began)

    for _ in range(PASSES):
        for way in ("as it is", "frozen", "inputs"):
            for module in (trained, *others):
                module.zero_grad()
                module.requires_grad_(way != "frozen" or module is trained)
            began = time.thread_time_ns()
            loss = loss_of()
            note(f"forward {way}", began)
            began = time.thread_time_ns()
            loss.backward(inputs=list(trained.parameters()) if way == "inputs" else None)
            note(way, began)
        for module in others:
            module.requires_grad_(True)
        loss = loss_of()
        unwanted = {id(p) for module in others for p in module.parameters()}
        timed = _Pass(())
        look = _Look(timed, _Graph([loss.grad_fn]), unwanted, _Watch(GradientFates(), (), []))
        loss.backward()
        look.finish()
        times.setdefault("alone", []).append(timed.needless_ns)
        times.setdefault("shared", []).append(timed.weights_ns)
    middle = {name: statistics.median(values) for name, values in times.items()}
    whole = middle["as it is"]
    saved = whole - middle["frozen"] + middle["forward as it is"] - middle["forward frozen"]
    return {
        "alone": middle["alone"] / whole,
        "shared": middle["shared"] / whole,
        "frozen": saved / whole,
        "inputs": 1 - middle["inputs"] / whole,
        "of shared": (saved - 1.05 * middle["alone"]) / middle["shared"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for case in (imagined_steps, critic_of_all_agents, twin_critics):
        found = measure(case())
        print(f"{case.__name__:22}", "  ".join(f"{name} {value:.2f}" for name, value in found.items()))
