"""The main function of a collector's process; heavy imports wait until the number of threads is set."""

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
    from hotloop.rl.collect.supervisor import ProcessSpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PR_SET_PDEATHSIG = 1


class OneThread:
    """First argument of the process: unpickling it sets one compute thread before numpy is imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _one_thread, ()


def _one_thread() -> OneThread:
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    return OneThread()


def run_collector(_threads: OneThread, spec: ProcessSpec) -> None:
    """Collect until the learner asks to stop or dies, or an error occurs here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _exit_with_parent(spec.parent_pid, spec.method)
    faulthandler.enable(spec.note.fileno(), all_threads=False)
    faulthandler.register(signal.SIGUSR1, spec.note.fileno(), all_threads=False)
    try:
        _collect(spec)
    except BaseException:
        spec.note.write(traceback.format_exc())  # the learner reports it
        raise SystemExit(1) from None


def _collect(spec: ProcessSpec) -> None:
    # Here and not above: numpy must not be imported before the number of threads is set.
    import cloudpickle  # type: ignore[import-untyped]

    from hotloop.rl.collect.actor_loop import ActorLoop
    from hotloop.rl.collect.row_writers import Stopped
    from hotloop.rl.collect.status import BEGAN_NS, HEARTBEAT_NS, PHASE, RUNNING, STEPS

    torch = sys.modules.get("torch")
    if torch is not None:  # imported by the user's script before the variables were set
        torch.set_num_threads(1)
    line = spec.status.words[spec.collector]
    task = cloudpickle.loads(spec.task)
    collector, life = task.first_collector + spec.collector, task.first_life + spec.life
    loop = ActorLoop(task, collector, life, spec.channel)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    writer = spec.link.open(spec)
    line[HEARTBEAT_NS] = line[BEGAN_NS] = time.monotonic_ns()
    line[PHASE] = RUNNING
    try:
        loop.begin(writer)
        while True:
            loop.step(writer)
            line[STEPS] += 1
            writer.beat()
    except Stopped:
        pass
    finally:
        loop.close()


def _exit_with_parent(parent_pid: int, method: str) -> None:
    """End this process when the learner's process ends, however that happens."""
    if method != "forkserver" and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_exit_after, args=(parent.sentinel,), daemon=True, name="orphan-watch"
        ).start()


def _exit_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
