"""Work that a library does not ask for: in callbacks and hooks, and questions to every environment."""

from __future__ import annotations

import ast
import re

from hotloop.analysis.advice.idioms.questions import call_of, called_names, is_loop
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot

# Methods that Stable-Baselines3 and Lightning call during training, again and again
HOOKS = re.compile(
    r"^(_on_step|_on_rollout_(start|end)|on_step|on_rollout_(start|end)|on_(train|validation)_batch_(start|end)"
    r"|on_(train|validation)_epoch_(start|end)|on_(before|after)_(backward|optimizer_step|zero_grad))$"
)
PLAYS = (".step", ".predict", ".reset", "evaluate_policy", ".rollout")
SURE = 0.8  # part of its time that an idiom saves, from which on it is the better answer in a callback
LEAST_WORK = 0.08  # share of training: what a callback does beside training may take this much
LEAST_EVALUATION = 0.15  # and an evaluation this much
NUMBERS = ("item", "mean", "sum", "float", "tolist", "median")


def is_hook(spot: Spot) -> bool:
    """Whether it is in a method that a library calls all through training."""
    return bool(HOOKS.match(spot.function.rpartition(".")[2]))


def in_a_callback(spot: Spot, known: Match | None) -> Match | None:
    """What is known about a statement; in a callback at least that training does not need it so often."""
    if not is_hook(spot) or is_loop(spot) or (known is not None and known.saved[1] >= SURE):
        return known
    called = list(called_names(spot.node))
    if any(name.startswith("super()") for name in called):
        return known
    inside = _calls_inside(spot)
    if inside & LEARNS or (not method_of_sb3(spot) and inside & COLLECTS):
        return known
    plays = any(name.endswith(PLAYS) for name in called)
    method = spot.function.rpartition(".")[2]
    return Match(
        "work_in_a_callback",
        f"{'Evaluate' if plays else 'Do the work of the callback'} less often (`{method}`)",
        "The library calls this method again and again, and training waits until it returns; what it does "
        "here is not part of training.",
        "Do it every few thousand steps (`if self.n_calls % 1000 == 0`, or once for each rollout), use what "
        "the library has computed already (self.locals), or do it once after training.",
        (0.7, 0.9, 1.0) if plays else (0.5, 0.95, 1.0),
        takes="all",
        library_calls=("",),
        waits=True,
        again=True,
        chills=False,
        least=LEAST_EVALUATION if plays else LEAST_WORK,
    )


# What trains a network, wherever it is done: a novelty bonus, a target network, a replay of one's own
LEARNS = frozenset({"backward", "zero_grad", "lerp_", "copy_", "polyak_update", "_foreach_lerp_"})
# In Lightning, experience is often collected in hooks of the module itself
COLLECTS = frozenset({"step", "reset", "append", "push", "add", "extend", "rollout", "collect", "sample"})
DEEPEST = 3


def method_of_sb3(spot: Spot) -> bool:
    """Whether it is a method that Stable-Baselines3 calls: of a callback, beside training."""
    return spot.function.rpartition(".")[2].startswith("_on_")


def _calls_inside(spot: Spot) -> set[str]:
    """Last names of all that the statement calls, through functions of the script."""
    found = {name.rpartition(".")[2] for name in called_names(spot.node)}
    new = set(found)
    for _ in range(DEEPEST):
        inner = {
            called.rpartition(".")[2]
            for name in new
            for function in spot.names.definitions.get(name, ())
            for called in called_names(function)
        }
        new = inner - found
        found |= new
    return found


@idiom
def asking_environments(spot: Spot) -> Match | None:
    """`env.get_attr("level")`: a message to every worker process, and an answer."""
    if is_loop(spot):
        return None
    call = call_of(spot, ".env_method", ".get_attr", ".set_attr", ".env_is_wrapped")
    if call is None:
        return None
    return Match(
        "asking_environments",
        "Ask or tell the environments less often",
        "It goes through all environments; with worker processes it is a message to each of them and a wait "
        "for the answer, at every pass.",
        "Let the environments put what is needed into `info`, or do it once for each rollout.",
        (0.6, 0.95, 1.0),
        part=call,
        library_calls=("vec_env", "vector"),
        waits=True,
    )


@idiom
def rollout_for_a_number(spot: Spot) -> Match | None:
    """`env.rollout(1000, policy)["next", "reward"].sum().item()`: TorchRL's way to evaluate."""
    call = call_of(spot, ".rollout")
    if is_loop(spot) or call is None or not any(name.startswith("torchrl.") for name in spot.called):
        return None
    if not any(name.rpartition(".")[2] in NUMBERS for name in called_names(spot.node)):
        return None
    if not isinstance(spot.node, ast.Assign | ast.Expr | ast.Return):
        return None
    return Match(
        "rollout_for_a_number",
        "Evaluate less often, or with shorter rollouts",
        "The environment is stepped only to learn how good the policy is.",
        "Evaluate every few dozen batches, with fewer steps, or in another process.",
        (0.7, 0.9, 1.0),
        safety="semantic",
        takes="all",
        library_calls=("",),
        again=True,
        chills=False,
        least=LEAST_EVALUATION,
    )
