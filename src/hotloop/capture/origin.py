"""How a process of the run came to be, and its place among others: what tells its role."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about a process from its start: its program, its target, its rank."""

    program: str = ""  # the script or module that it runs, such as "train.py" or "torch.distributed.run"
    target: str = ""  # function that a process of multiprocessing runs, "module.name"; "" for none
    start_method: str = ""  # "fork", "spawn" or "forkserver" for a process of multiprocessing
    rank: int | None = None  # RANK, and so on: set by torchrun and other launchers, and inherited by workers
    local_rank: int | None = None
    world_size: int | None = None
    ray: str = ""  # "driver" or "worker" of a Ray job; "" for neither
    node: str = ""  # id of its node in a cluster; "" for none
    actor: str = ""  # class of the actor that a worker of Ray runs; "" for a worker that runs tasks
