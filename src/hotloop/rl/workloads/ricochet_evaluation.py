"""Evaluation on Ricochet boards that an agent has not seen: policies, and how many boards they solve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import profile, profile_function
from hotloop.rl.workloads.ricochet_config import Ricochet, make_envs

_evaluate = profile("evaluate")

EVALUATION_SEED = 1_000_000  # away from the seeds of training
BOARDS_AT_ONCE = 256  # of an evaluation

Policy = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[np.int64]]
"""Observations, and which of them start an episode -> actions."""


@dataclass(frozen=True, slots=True)
class Solved:
    """Result of an evaluation, one episode per board."""

    max_episode_steps: int
    """Steps after which a board counts as not solved."""
    boards: dict[int, int]
    """Number of boards, by the moves of their shortest solutions."""
    solved: dict[int, int]
    """How many of them were solved."""
    mean_steps: float | None
    """Mean number of steps on the solved boards; None when there is none."""

    @property
    def fraction(self) -> float:
        """Solved boards of all boards."""
        return sum(self.solved.values()) / sum(self.boards.values())

    @property
    def summary(self) -> str:
        each = ", ".join(f"{100 * self.solved[n] / self.boards[n]:.0f} % of {n}" for n in self.boards)
        return (
            f"solves {100 * self.fraction:.1f} % of {sum(self.boards.values())} unseen boards within "
            f"{self.max_episode_steps} steps ({each} moves)"
        )


def play(policy: Policy, config: Ricochet, boards: int, seed: int = EVALUATION_SEED) -> Solved:
    """One episode on each of `boards` boards, up to BOARDS_AT_ONCE of them at a time."""
    from hotloop.rl.train.runs import torch_threads  # torch is slow to import

    optimal, steps = np.zeros(boards, dtype=np.int64), np.zeros(boards, dtype=np.int64)
    with _evaluate, torch_threads(config.threads):
        for first in range(0, boards, BOARDS_AT_ONCE):
            some = slice(first, min(first + BOARDS_AT_ONCE, boards))
            optimal[some], steps[some] = _play_some(policy, config, some.stop - some.start, seed + first)
    moves = sorted(set(optimal.tolist()))
    return Solved(
        max_episode_steps=config.max_episode_steps,
        boards={n: int((optimal == n).sum()) for n in moves},
        solved={n: int(((optimal == n) & (steps > 0)).sum()) for n in moves},
        mean_steps=float(steps[steps > 0].mean()) if steps.any() else None,
    )


def _play_some(policy: Policy, config: Ricochet, count: int, seed: int) -> tuple[Any, Any]:
    """Moves of the shortest solutions, and steps taken or 0 where a board was not solved, [count] each."""
    from hotloop.rl.train.runs import end_if_stopped  # torch is slow to import

    envs = make_envs(dataclasses.replace(config, n_envs=count))
    observations, infos = envs.reset(seed=seed)
    optimal, steps = infos["optimal_moves"].copy(), np.zeros(count, dtype=np.int64)
    episode_starts, running = np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    for number in range(1, config.max_episode_steps + 1):
        end_if_stopped()
        observations, _, terminated, truncated, _ = envs.step(policy(observations, episode_starts))
        steps[terminated & running] = number
        episode_starts = terminated | truncated
        running &= ~episode_starts
        if not running.any():
            break
    envs.close()
    return optimal, steps


def random_policy(config: Ricochet, seed: int = 0) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda observations, _: rng.integers(0, 4 * config.robots, len(observations))


def sampled_policy(network: Any, seed: int = 0) -> Policy:
    """Actions sampled from an `ActorCritic`; always taking the most likely one may go in circles."""
    import torch

    rng = np.random.default_rng(seed)

    def act(observations: NDArray[Any], _: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations)).numpy()
        chosen: NDArray[np.int64] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return chosen

    return act


def recurrent_policy(network: Any, seed: int = 0, *, greedy: bool = False) -> Policy:
    """Actions of a `RecurrentActorCritic`, whose memory starts anew with each episode.

    They are sampled, or with `greedy` the most likely ones.
    """
    import torch

    rng, state = np.random.default_rng(seed), network.initial_state(0)

    def act(observations: NDArray[Any], episode_starts: NDArray[np.bool_]) -> NDArray[np.int64]:
        nonlocal state
        if episode_starts.all():
            state = network.initial_state(len(observations))
        uniforms = torch.from_numpy(rng.random(len(observations), dtype=np.float32))
        with torch.inference_mode():
            seen, starts = torch.from_numpy(observations), torch.from_numpy(episode_starts)
            if greedy:
                logits, _, state = network(seen[None], state, starts[None])
                best: NDArray[np.int64] = logits[0].argmax(dim=1).numpy()
                return best
            output = network.act(seen, state, starts, uniforms)
        state = output.state
        chosen: NDArray[np.int64] = output.actions.numpy()
        return chosen

    return act


# ---- within twice the optimal number of moves
#
# As many boards of one move as of two, and so on: boards of one move are easy, and there must not be more of
# them. Nothing but the agent's network plays; the solver only says which boards have which length.

ALLOWANCE = 2  # times the optimal number of moves
# Boards drawn for each one wanted; where long solutions are rarer, there are fewer of them.
MOST_DRAWN = 200


@dataclass(frozen=True, slots=True)
class SolvedInTime:
    """Boards by the moves of their shortest solution, and how many of them were solved in time."""

    boards: dict[int, int]
    solved: dict[int, int]

    @property
    def fraction(self) -> float:
        """Solved boards of all boards."""
        return sum(self.solved.values()) / sum(self.boards.values())

    @property
    def fractions(self) -> dict[int, float]:
        """Solved boards of the boards of each length."""
        return {moves: self.solved[moves] / count for moves, count in self.boards.items()}


def play_equally(policy: Policy, config: Ricochet, boards: int, seed: int = EVALUATION_SEED) -> SolvedInTime:
    """Play one episode on each of `boards` boards, equally many of each length up to `max_solution_moves`."""
    from hotloop.rl.train.runs import torch_threads  # torch is slow to import

    lengths = range(1, config.max_solution_moves + 1)
    share, rest = divmod(boards, len(lengths))
    wanted = {moves: share + (moves <= rest) for moves in lengths}
    played, solved = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
    drawn = min(BOARDS_AT_ONCE, 2 * boards)  # at once; it does not change which boards are played
    with _evaluate, torch_threads(config.threads):
        for _ in range(1 + MOST_DRAWN * boards // drawn):
            if played == wanted:
                break
            # The time limit of the training must not end an episode here.
            envs = make_envs(
                dataclasses.replace(
                    config, n_envs=drawn, max_episode_steps=ALLOWANCE * config.max_solution_moves
                )
            )
            observations, infos = envs.reset(seed=seed)
            seed += drawn
            optimal = infos["optimal_moves"].copy()
            chosen = np.zeros(drawn, dtype=np.bool_)
            for moves in lengths:
                rows = np.flatnonzero(optimal == moves)[: wanted[moves] - played[moves]]
                chosen[rows] = True
                played[moves] += len(rows)
            in_time = _solved_in_time(envs, observations, policy, np.where(chosen, optimal, 0))
            envs.close()
            for moves in lengths:
                solved[moves] += int((in_time & (optimal == moves)).sum())
    found = [moves for moves in lengths if played[moves]]
    return SolvedInTime({n: played[n] for n in found}, {n: solved[n] for n in found})


def _solved_in_time(
    envs: Any, observations: NDArray[Any], policy: Policy, optimal: NDArray[Any]
) -> NDArray[np.bool_]:
    """Whether each board [rows] was solved in ALLOWANCE * `optimal` moves; rows with 0 are not judged."""
    from hotloop.rl.train.runs import end_if_stopped  # torch is slow to import

    in_time = np.zeros(len(optimal), dtype=np.bool_)
    episode_starts, running = ~in_time, optimal > 0
    for number in range(1, ALLOWANCE * int(optimal.max(initial=0)) + 1):
        end_if_stopped()
        observations, _, terminated, truncated, _ = envs.step(policy(observations, episode_starts))
        in_time |= terminated & running
        episode_starts = terminated | truncated
        running &= ~episode_starts & (number < ALLOWANCE * optimal)
        if not running.any():
            break
    return in_time


@dataclass(frozen=True, slots=True)
class Table:
    """The same boards played by the agent in two ways, and at random."""

    most_likely: SolvedInTime
    sampled: SolvedInTime
    at_random: SolvedInTime

    @property
    def lines(self) -> tuple[str, ...]:
        """The table as text."""
        lengths = list(self.most_likely.boards)
        head = [f"{moves} move{'s' * (moves > 1)}" for moves in lengths]
        rows = {
            "agent, most likely moves": self.most_likely,
            "agent, sampled moves": self.sampled,
            "random moves": self.at_random,
        }
        total = sum(self.most_likely.boards.values())
        return (
            f"solved within twice the optimal number of moves, of {total:,} unseen boards:",
            f"  {'':24}" + "".join(f"{words:>10}" for words in (*head, "all")),
            *(
                f"  {name:24}"
                + "".join(f"{100 * part:>8.1f} %" for part in (*row.fractions.values(), row.fraction))
                for name, row in rows.items()
            ),
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """All fractions by name."""
        found: dict[str, float | None] = {}
        rows = {"agent": self.most_likely, "agent_sampled": self.sampled, "random": self.at_random}
        for name, row in rows.items():
            found[f"{name}_solved_fraction"] = row.fraction
            for moves, part in row.fractions.items():
                found[f"{name}_solved_fraction_{moves}_moves"] = part
        return found


@profile_function("shut_down", category="other")
def make_table(network: Any, config: Ricochet) -> Table:
    """Evaluate a `RecurrentActorCritic` on `n_eval_episodes` unseen boards."""
    boards = config.n_eval_episodes
    return Table(
        play_equally(recurrent_policy(network, greedy=True), config, boards),
        play_equally(recurrent_policy(network), config, boards),
        play_equally(random_policy(config), config, boards),
    )
