"""What runs in a collector's process; imports nothing heavy until the number of threads is set."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.rl.collect.watch import Parcel

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PR_SET_PDEATHSIG = 1


class OneThread:
    """First argument of the process: unpickling it sets the threads before numpy is imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _one_thread, ()


def _one_thread() -> OneThread:
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    return OneThread()


def run(_threads: OneThread, parcel: Parcel) -> None:
    """Collect until the learner says stop, it dies, or something here breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _die_with(parcel.parent_pid, parcel.method)
    faulthandler.enable(parcel.note.fileno(), all_threads=False)
    faulthandler.register(signal.SIGUSR1, parcel.note.fileno(), all_threads=False)
    try:
        _collect(parcel)
    except BaseException:
        parcel.note.write(traceback.format_exc())  # the learner reports it
        raise SystemExit(1) from None


def _collect(parcel: Parcel) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    from hotloop.rl.collect.roll import Roller
    from hotloop.rl.collect.sink import Stopped
    from hotloop.rl.collect.status import BEAT, BEGAN, PHASE, RUNNING, STEPS

    torch = sys.modules.get("torch")
    if torch is not None:  # the user's script imported it before we could set the variables
        torch.set_num_threads(1)
    line = parcel.status.words[parcel.collector]
    task = cloudpickle.loads(parcel.task)
    roller = Roller(task, parcel.collector, parcel.life, parcel.post)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    sink = parcel.link.open(parcel)
    line[BEAT] = line[BEGAN] = time.monotonic_ns()
    line[PHASE] = RUNNING
    try:
        roller.begin(sink)
        while True:
            roller.step(sink)
            line[STEPS] += 1
            sink.beat()
    except Stopped:
        pass
    finally:
        roller.close()


def _die_with(parent_pid: int, method: str) -> None:
    """End this process when the learner's ends, however that happens."""
    if method != "forkserver" and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True, name="orphan-watch").start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
