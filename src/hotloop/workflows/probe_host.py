"""A process that loads a workload once and forks a child for each short training that is asked for.

    python -m hotloop.workflows.probe_host NAME

reads requests from stdin, one JSON object a line ({"config": ..., "capture": DIR, "accounts": true}), and
answers each with two lines: {"pid": ...} once the child runs, {"code": ..., "cpu_s": ...} once it has ended
(2: it refused its settings and said why on stderr). torch computes nothing before a fork, so that none of its
threads are lost in it. When stdin ends, the child is ended, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.workflows.probes import OUTCOME_FILE, REFUSED
from hotloop.workflows.train import Recording, config_class, train

LOOK_S = 0.05
WORK_FOLDER = "work"  # beside the capture, while a probe runs
_TRAINERS = ("ppo", "recurrent_ppo", "dqn", "sac", "bc")


def main(name: str) -> int:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked; the children are told
    kind = config_class(name)
    for trainer in _TRAINERS:
        importlib.import_module(f"hotloop.rl.train.{trainer}")
    loaded = False
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(name, kind, request)
        _answer({"pid": pid})
        status, used = _wait(pid, Path(request["capture"]).parent / WORK_FOLDER)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not loaded:
            _load_kernels(name, kind(**_given(request)))
            loaded = True
        _answer({"code": code, "cpu_s": used.ru_utime + used.ru_stime})
    return 0


def _given(request: dict[str, Any]) -> dict[str, Any]:
    """The settings asked for; JSON knows no tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in request["config"].items()}


def _load_kernels(name: str, config: Any) -> None:
    """Load the environments' kernels, which the first child has compiled, so that no other child has to."""
    make: Any = getattr(importlib.import_module(f"hotloop.rl.workloads.{name}"), "make_envs", None)
    if make is not None:
        envs = make(config)
        envs.reset(seed=0)
        envs.close()


def _wait(pid: int, work: Path) -> tuple[int, Any]:
    """Wait for a child and take away what it wrote in its working folder.

    Nobody sends more before it has ended, so what can be read is the end of stdin.
    """
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            shutil.rmtree(work, ignore_errors=True)
            return status, used
        if select.select([0], [], [], LOOK_S)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            shutil.rmtree(work, ignore_errors=True)
            os._exit(1)


def own_folder(theirs: Path, mine: Path, stage: str | None) -> Path:
    """A folder for a probe to write in; cloning finds in it the demonstrations it only reads."""
    mine.mkdir()
    demonstrations = theirs / "demonstrations"
    if stage == "bc" and demonstrations.is_dir():
        (mine / "demonstrations").symlink_to(demonstrations.resolve(), target_is_directory=True)
    return mine


def _answer(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _child(name: str, kind: type[Any], request: dict[str, Any]) -> None:
    """Train, tell the outcome in a file beside the capture, and end; never returns."""
    code = 1
    try:
        os.setsid()
        folder = Path(request["capture"])
        errors = os.open(folder.parent / "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(errors, 2)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        given = _given(request)
        if "folder" in given:
            mine = folder.parent / WORK_FOLDER
            given["folder"] = own_folder(Path(given["folder"]), mine, given.get("stage"))
        trained = train(name, kind(**given), Recording(folder), quiet=True)
        if request.get("accounts", True):
            said = dataclasses.asdict(trained.outcome)
            (folder.parent / OUTCOME_FILE).write_text(json.dumps(said, default=str), encoding="utf-8")
        code = 0
    except HotloopError as error:
        code = REFUSED
        print(error, file=sys.stderr, flush=True)
    except BaseException as error:  # a forked child must not return into the host's loop
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
