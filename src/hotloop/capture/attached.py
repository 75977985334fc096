"""What `hotloop attach` saw of a running process; nothing of it is written to a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on a stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class AttachedThread:
    """One thread of the process or of its children, over the time it was watched."""

    pid: int
    native_id: int
    name: str
    stacks: tuple[tuple[tuple[Frame, ...], int], ...]  # outermost frame first, with the number of samples
    gil_samples: int  # samples in which it held the GIL
    on_core_s: float | None  # None: the system does not tell, or the thread ended meanwhile
    run_queue_s: float | None

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.stacks)


@dataclass(frozen=True, slots=True)
class Attached:
    """What was seen of a running process."""

    pid: int
    command: tuple[str, ...]
    seconds: float
    rate_per_s: int
    cores: float
    settings: dict[str, str]  # of THREAD_VARIABLES, those that are set
    threads: tuple[AttachedThread, ...]
