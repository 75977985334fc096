"""Types of the compiled core; `hotloop.measure.twin` documents what they do."""

from collections.abc import Callable, Sequence
from typing import Any

from hotloop.measure.part import Part

KIND: int
LAYOUT_CRC: int

def position_at(table: bytes, first_line: int, instruction: int) -> tuple[int, int, int, int] | None: ...
def class_builder(
    build: Callable[..., Any], names: tuple[str, ...], made: Callable[[type], object]
) -> Callable[..., Any]: ...
def peek(address: int, size: int) -> bytes | None: ...

class Region:
    recorder: Recorder
    number: int
    name: str
    category: str
    device: bool
    site: str
    def __enter__(self) -> Region: ...
    def __exit__(self, *exception: object) -> None: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]: ...
    def add(self, *, bytes: float = 0, flops: float = 0) -> None: ...
    def is_open(self) -> bool: ...
    def on_collection(self, phase: str, info: dict[str, int]) -> None: ...
    def wrap(
        self,
        function: Callable[..., Any],
        *,
        outer: Region | None = None,
        no_outer_inside: tuple[Region, ...] = (),
        skip_inside: tuple[Region, ...] = (),
        choose: Callable[[], object] | tuple[Callable[[], object], ...] | None = None,
        always: tuple[Region, ...] = (),
        never: tuple[Region, ...] = (),
        otherwise: Region | None = None,
        otherwise_outer: Region | None = None,
        after: Callable[[Any, Any], object] | None = None,
        pick: Callable[..., Region | None] | None = None,
        settled: dict[int, Region] = ...,
        detail: Callable[[Any], Region | None] | None = None,
    ) -> Callable[..., Any]: ...

class Recorder:
    clock: Callable[[], int] | None
    epoch: int
    flags: int
    device: Any
    part: Part | None
    on_window: Callable[[int], None] | None
    on_steps: Callable[[], None] | None
    steps_due: int
    locate: bool
    name_gap: Callable[[Region, Region], Region] | None
    def __init__(self, clock: Callable[[], int] | None = None) -> None: ...
    def profile(self, name: str, category: str | None = None, *, device: bool | None = None) -> Region: ...
    def start(
        self, open_part: Callable[[], Part], sample_memory: bool = True, lazily: bool = False
    ) -> None: ...
    def stop(self) -> Part | None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def sample(self) -> None: ...
    def now(self) -> int: ...
    def sample_lines(self, own: str, libraries: tuple[str, ...], interval_ns: int = ...) -> str | None: ...
    def take_line_sample(self) -> None: ...
    def save_samples(self) -> None: ...
    def open_node(self, native_id: int) -> tuple[int, int]: ...
    def progress(
        self,
        *,
        env_steps: int = 0,
        updates: int = 0,
        episodes: int = 0,
        episode_length: float | None = None,
        episode_return: float | None = None,
        loss: float | None = None,
    ) -> None: ...
    def credit_device(self, node: Any, device_ns: int | None, growth: int, peak: int) -> None: ...

class StepCounter:
    counting: bool
    calls: int
    path: int
    report: Callable[..., object] | None
    on_step: Callable[[Any, Any], object] | None
    def see(self, env: Any, observation: Any) -> None: ...
    def __init__(
        self,
        recorder: Recorder,
        reward: int,
        ends: tuple[int, ...],
        *,
        on_unknown: Callable[[Any, Any], object] | None = None,
        episode_sums: Callable[[Any, Any, list[int]], tuple[float, float] | None] | None = None,
        resets_cost_a_step: Callable[[Any], object] | None = None,
        skip_inside: Region | None = None,
    ) -> None: ...
    def __call__(self, env: Any, result: Any) -> None: ...
    def add(self, env: Any, rewards: Sequence[float], ended: Sequence[object]) -> None: ...
    def forget(self, env: Any, result: Any = None) -> None: ...
    def recent(self) -> list[tuple[int, Any, int]]: ...
    def drop(self) -> None: ...

class WatchedLock:  # before Python 3.13
    channel: Any
    def __new__(
        cls,
        lock: Any,
        long_ns: int,
        begin: Callable[[], object],
        waited: Callable[[WatchedLock, Any], object],
        freeing: Callable[[WatchedLock, int, int], object],
    ) -> WatchedLock: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
