"""Several processes that learn together: each steps some of the envs, and every gradient is that of all.

A run with n ranks makes the same numbers as a run in one process, up to the rounding of sums: all ranks draw
the same random numbers and use those of their envs, and the gradients of a batch are added up over the ranks
that hold its samples. Trainers call these methods at the same places in every rank; with one rank they
return what they were given.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop import profile
from hotloop._util.errors import HotloopError

Arrays = dict[str, NDArray[Any]]

TIMEOUT_S = 600.0  # for the other ranks in a collective; a supervisor notices a dead one much earlier

_collective = profile("collective", "wait")
_all_reduce = profile("all_reduce", "wait")
_all_gather = profile("all_gather_object", "wait")


class RankLost(HotloopError):
    """Another process of the run is gone, or did not answer in time."""


@contextlib.contextmanager
def _noticing_losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo says: connection closed, or timed out
        raise RankLost(
            f"Another learner of this run is gone ({str(error).splitlines()[0][:200]})."
        ) from error


class Ranks:
    """This process among the `size` processes of a run."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.stop_by: str | None = None
        """Set it to end training after the current update; one rank is enough."""

    def envs(self, n_envs: int) -> slice:
        """Which of all envs this rank steps."""
        return slice(n_envs * self.rank // self.size, n_envs * (self.rank + 1) // self.size)

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place; the same bits in each of them. Raises RankLost."""
        if self.size > 1:
            with _collective, _all_reduce, _noticing_losses():
                torch.distributed.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """What each rank has given, in their order. Raises RankLost."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with _collective, _all_gather, _noticing_losses():
            torch.distributed.all_gather_object(found, value)
        return found

    def join(self, values: NDArray[Any], axis: int) -> NDArray[Any]:
        """The values of all envs; `axis` is that of the envs."""
        return values if self.size == 1 else np.concatenate(self.gather(values), axis=axis)

    def join_state(self, state: Mapping[str, NDArray[Any]], axes: Mapping[str, int]) -> Arrays:
        """State of all envs, for a checkpoint of the whole run; `axes` names those that are not the first."""
        if self.size == 1:
            return dict(state)
        found = self.gather(dict(state))
        return {
            name: np.concatenate([part[name] for part in found], axis=axes.get(name, 0)) for name in state
        }

    def own_state(self, state: Mapping[str, NDArray[Any]], axes: Mapping[str, int], n_envs: int) -> Arrays:
        """The part of such a state that belongs to this rank."""
        if self.size == 1:
            return dict(state)
        rows = np.arange(n_envs)[self.envs(n_envs)]
        return {name: array.take(rows, axis=axes.get(name, 0)) for name, array in state.items()}

    def check_equal(self, weights: Mapping[str, NDArray[Any]], what: str) -> None:
        """Raise HotloopError if the ranks do not hold the same bits."""
        if self.size > 1:
            sums = self.gather({name: _checksum(array) for name, array in weights.items()})
            unequal = [name for name in weights if len({found[name] for found in sums}) > 1]
            if unequal:
                raise HotloopError(f"The ranks disagree about {what}: {', '.join(unequal[:3])}.")


ALONE = Ranks()


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


@contextlib.contextmanager
def join_group(rank: int, size: int, store: Any, timeout_s: float = TIMEOUT_S) -> Iterator[Ranks]:
    """Be rank `rank` of `size` inside the block; `store` is one of torch.distributed that all of them see."""
    if size == 1:
        yield Ranks()
        return
    limit = datetime.timedelta(seconds=timeout_s)
    with _noticing_losses():
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size, store=store, timeout=limit)
    try:
        yield Ranks(rank, size)
    finally:
        with contextlib.suppress(RuntimeError, ValueError):  # another rank may be gone
            torch.distributed.destroy_process_group()


def use_interface_of(address: str) -> None:
    """Let gloo use the network interface with this address, unless the environment names one.

    By default it takes the one that the host's name belongs to, which may be none that others can reach.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            return
