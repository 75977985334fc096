"""PPO in several processes makes the numbers of PPO in one. The ranks are threads; long tests use gloo."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.ppo import PPOConfig, PPOResult, TorchLearner, train
from hotloop.rl.train.ranks import Ranks

SMALL = PPOConfig(
    env="CartPole", total_timesteps=600, n_envs=5, n_steps=40, n_epochs=2, batch_size=50, net_arch=(16,),
    learner="torch", learning_rate=1e-2, quiet=True,
)  # fmt: skip


class ThreadRanks(Ranks):
    """Ranks in the threads of one process."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]):
        super().__init__(rank, size)
        self._barrier, self._slots = barrier, slots

    def add_up(self, values: Tensor) -> Tensor:
        found = self.gather(values.clone())
        values.copy_(sum(found[1:], found[0]))
        return values

    def gather(self, value: Any) -> list[Any]:
        self._slots[self.rank] = copy.deepcopy(value)
        self._barrier.wait(60)
        found = list(self._slots)
        self._barrier.wait(60)
        return found


def in_threads(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Results of `work` in each rank, or the first error."""
    barrier, slots = threading.Barrier(size), [None] * size
    results: list[Any] = [None] * size

    def one(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, size, barrier, slots))
        except BaseException as error:
            results[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [found for found in results if isinstance(found, BaseException)]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return results


def made_up_rollout(n_envs: int = 5, masked: bool = True) -> RolloutBuffer:
    rng = np.random.default_rng(1)
    buffer = RolloutBuffer(16, n_envs, (3,), 4, masked=masked)
    buffer.observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.actions[:] = rng.integers(0, 4, buffer.actions.shape)
    buffer.log_probabilities[:] = -np.log(4) + 0.1 * rng.standard_normal(buffer.actions.shape)
    buffer.values[:] = rng.standard_normal(buffer.values.shape)
    buffer.advantages[:] = 3 + 10 * rng.standard_normal(buffer.actions.shape)
    buffer.returns[:] = buffer.advantages + buffer.values[:-1]
    if masked:
        buffer.masks[:] = rng.random(buffer.masks.shape) < 0.7
        np.put_along_axis(buffer.masks, buffer.actions[..., None], True, axis=2)
    return buffer


def part_of(whole: RolloutBuffer, envs: slice) -> RolloutBuffer:
    part = RolloutBuffer(whole.n_steps, envs.stop - envs.start, (3,), 4, masked=whole.masked)
    for name, array in vars(part).items():
        if isinstance(array, np.ndarray) and array.size:
            array[:] = getattr(whole, name)[:, envs]
    return part


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("normalized", [True, False])
def test_gradients_are_those_of_one_learner_on_the_joined_batch(size: int, normalized: bool) -> None:
    config = PPOConfig(
        normalize_advantage=normalized, n_envs=5, n_steps=16, batch_size=40, max_grad_norm=None, ent_coef=0.01
    )
    torch.manual_seed(0)
    network = ActorCritic(3, 4, (8, 8))
    whole = made_up_rollout()
    # The first batch has no sample of the last env, so one of the ranks may have none at all.
    order = np.random.default_rng(2).permutation(whole.actions.size)
    order = np.concatenate([order[order % 5 != 4][:40], order[order % 5 == 4], order[order % 5 != 4][40:]])
    edges = np.array([0, 40])

    def gradients(ranks: Ranks, buffer: RolloutBuffer) -> tuple[list[NDArray[Any]], dict[str, float]]:
        own = copy.deepcopy(network)
        found = TorchLearner(own, config, ranks=ranks).update(buffer, order[None], edges, 1e-3)
        return [p.grad.numpy().copy() for p in own.parameters()], found

    expected, statistics = gradients(Ranks(), whole)
    for found, same in in_threads(size, lambda ranks: gradients(ranks, part_of(whole, ranks.envs(5)))):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
        assert same == pytest.approx(statistics, rel=1e-5, abs=1e-6)


def network() -> ActorCritic:
    """The same in each rank; made from the seed by threads at the same time, it would not be."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return ActorCritic(4, 2, (16,))


FIRST = network()


def train_rank(config: PPOConfig, ranks: Ranks, **more: Any) -> PPOResult:
    return train(config, ranks=ranks, network=copy.deepcopy(FIRST), **more)


def weights(result: PPOResult) -> NDArray[Any]:
    return np.concatenate([p.detach().numpy().ravel() for p in result.network.parameters()])


def test_a_run_of_three_ranks_is_the_run_of_one() -> None:
    alone = train_rank(SMALL, Ranks())
    together = in_threads(3, lambda ranks: train_rank(SMALL, ranks))
    for result in together:
        assert (result.env_steps, result.updates) == (alone.env_steps, alone.updates)
        assert result.episodes == alone.episodes
        assert result.statistics == pytest.approx(alone.statistics, rel=1e-3, abs=1e-4)
        np.testing.assert_array_equal(weights(result), weights(together[0]))
        np.testing.assert_allclose(weights(result), weights(alone), atol=1e-4)


def test_a_checkpoint_of_two_ranks_goes_on_in_one_or_three(tmp_path: Path) -> None:
    whole = train_rank(SMALL, Ranks())
    half = dataclasses.replace(SMALL, total_timesteps=400)
    saved = [tmp_path / "first", tmp_path / "second"]
    in_threads(2, lambda r: train_rank(dataclasses.replace(half, checkpoint=saved[r.rank]), r))
    assert saved[0].is_file() and not saved[1].exists()
    resumed = dataclasses.replace(SMALL, checkpoint=saved[0], resume=True, checkpoint_every_steps=10**6)
    for size in (1, 3):
        copies = [tmp_path / f"{size}-{rank}" for rank in range(size)]
        for file in copies:
            file.write_bytes(saved[0].read_bytes())
        configs = [dataclasses.replace(resumed, checkpoint=file) for file in copies]
        runs = in_threads(size, partial(lambda of, r: train_rank(of[r.rank], r), configs))
        assert runs[0].resumed_at == 400 and runs[0].env_steps == 600
        np.testing.assert_allclose(weights(runs[0]), weights(whole), atol=1e-4)


def test_any_rank_can_ask_all_to_stop() -> None:
    def stopping(ranks: Ranks) -> PPOResult:
        def after(env_steps: int, _: Any) -> None:
            if env_steps == 200 and ranks.rank == 1:
                ranks.stop_by = "SIGTERM"

        return train_rank(SMALL, ranks, after_update=after)

    for result in in_threads(2, stopping):
        assert result.stopped_by == "SIGTERM" and result.env_steps == 200


def test_ranks_that_start_with_different_weights_are_refused() -> None:
    others = [network(), ActorCritic(4, 2, (16,))]
    with pytest.raises(HotloopError, match="The ranks disagree about the weights at the start"):
        in_threads(2, lambda ranks: train(SMALL, ranks=ranks, network=others[ranks.rank]))


def test_a_compiled_learner_is_refused() -> None:
    with pytest.raises(HotloopError, match="learns in one process"):
        in_threads(2, lambda ranks: train_rank(dataclasses.replace(SMALL, learner="fused"), ranks))


TWO_PROCESSES = """
import json, sys
import torch
from hotloop.rl.train.ppo import train
from hotloop.rl.train.ranks import Ranks, RankLost, join_group
from tests.unit.test_ranks import SMALL, weights

rank, size, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4]
store = torch.distributed.FileStore(sys.argv[3], size)
with join_group(rank, size, store, timeout_s=120) as ranks:
    def after(env_steps, statistics):
        if how == "dies" and rank == 1 and env_steps == 200:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        result = train(SMALL, ranks=ranks, after_update=after)
    except RankLost as error:
        raise SystemExit(str(error))
    print(json.dumps([result.env_steps, result.updates, result.episodes, weights(result).tolist()]))
"""


def two_processes(folder: Path, how: str) -> list[subprocess.CompletedProcess[str]]:
    words = [[sys.executable, "-c", TWO_PROCESSES, str(r), "2", str(folder / "store"), how] for r in (0, 1)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(w, **pipes) for w in words]
    ended = [p.communicate(timeout=300) for p in started]
    return [
        subprocess.CompletedProcess(w, p.returncode, *said)
        for w, p, said in zip(words, started, ended, strict=True)
    ]


@pytest.mark.long
def test_two_processes_with_gloo_make_the_same_run(tmp_path: Path) -> None:
    found = two_processes(tmp_path, "ends")
    assert [done.returncode for done in found] == [0, 0], found
    first, second = (json.loads(done.stdout.splitlines()[-1]) for done in found)
    alone = train(SMALL)
    assert first == second
    assert first[:3] == [alone.env_steps, alone.updates, alone.episodes]
    np.testing.assert_allclose(first[3], weights(alone), atol=1e-4)


@pytest.mark.long
@pytest.mark.long
def test_a_rank_whose_partner_is_killed_says_so_and_does_not_hang(tmp_path: Path) -> None:
    left, killed = two_processes(tmp_path, "dies")
    assert killed.returncode == -9
    assert left.returncode == 1 and "Another learner of this run is gone" in left.stderr
