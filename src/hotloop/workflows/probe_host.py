"""A process that loads a workload once and forks a child for each training run requested.

    python -m hotloop.workflows.probe_host NAME

says {"ready": true} when everything is loaded, then reads requests from stdin, one JSON object per line.
Each is answered with two lines: {"pid": ...} when the child runs, {"code": ..., "cpu_s": ...} at its end.
A request is either a probe of the tuner,
{"config": ..., "capture": DIR, "save_outcome": true} (exit code 2: a setting is invalid, stderr says which),
or a run of the lab, {"words": [...], "environment": {...}, "folder": DIR, "cores": [...]}, which is
`python -m hotloop WORDS`. Stderr of the child goes into the file "stderr". torch computes nothing before a
fork, because its threads would not survive it. When stdin ends, the child is killed, too.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from hotloop._util import strict_json
from hotloop._util.errors import HotloopError
from hotloop.instrument.bootstrap import RUN_VARIABLE, instrument_process
from hotloop.workflows.probes import OUTCOME_FILE, REFUSED
from hotloop.workflows.train import Recording, config_class, train

POLL_S = 0.05
WORK_FOLDER = "work"  # beside the capture, during a probe
_TRAINERS = ("ppo", "recurrent_ppo", "dqn", "sac", "bc")
_LOADED = (
    "hotloop.cli.train",
    "torch._dynamo",  # torch's optimizers import it when created
    *(f"hotloop.rl.train.{trainer}" for trainer in _TRAINERS),
)


def main(name: str) -> int:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which stops the children
    kind = config_class(name)
    for module in _LOADED:
        importlib.import_module(module)
    _answer({"ready": True})
    loaded = False
    while line := sys.stdin.readline():
        request = json.loads(line)
        is_command = "words" in request
        pid = os.fork()
        if pid == 0 and is_command:
            _command(request)
        elif pid == 0:
            _probe(name, kind, request)
        _answer({"pid": pid})
        status, used = _wait(pid, Path(request["stderr"]).parent / WORK_FOLDER)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not loaded:
            _load_kernels(name, kind() if is_command else kind(**_given(request)))
            loaded = True
        _answer({"code": code, "cpu_s": used.ru_utime + used.ru_stime})
    return 0


def _given(request: dict[str, Any]) -> dict[str, Any]:
    """Settings of the request, with JSON lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in request["config"].items()}


def _load_kernels(name: str, config: Any) -> None:
    """Load the kernels that the first child compiled, so that later children inherit them."""
    prepare: Any = getattr(importlib.import_module(f"hotloop.rl.workloads.{name}"), "prepare", None)
    if prepare is not None:
        prepare(config)


def _wait(pid: int, work: Path) -> tuple[int, Any]:
    """Wait for a child, then remove its work folder.

    No request arrives while a child runs, so if stdin is readable, it has ended.
    """
    end = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None  # readable once the child has ended
    ends = [] if end is None else [end]
    try:
        while True:
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                return status, used
            if 0 in select.select([0, *ends], [], [], POLL_S)[0]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.wait4(pid, 0)
                raise SystemExit(1)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for descriptor in ends:
            os.close(descriptor)


def in_own_folder(given: dict[str, Any], mine: Path) -> dict[str, Any]:
    """Settings that write to a new folder `mine`; behaviour cloning still reads the run's demonstrations."""
    mine.mkdir()
    if given.get("stage") == "bc" and not given.get("data"):
        given = given | {"data": Path(given["folder"]).resolve()}
    return given | {"folder": mine}


def _answer(values: dict[str, Any]) -> None:
    sys.stdout.write(strict_json.dumps(values) + "\n")
    sys.stdout.flush()


def _begin_child(stderr: str) -> None:
    """Own process group, stdin and stdout closed, default handling of Ctrl-C."""
    os.setsid()
    errors = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(errors, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(request: dict[str, Any]) -> None:
    """Run `python -m hotloop WORDS` with the given environment, folder and cores; never returns."""
    code = 1
    try:
        _begin_child(request["stderr"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])
        if os.environ.get(RUN_VARIABLE):
            instrument_process()
        sys.argv = ["hotloop", *request["words"]]
        runpy.run_module("hotloop", run_name="__main__", alter_sys=True)  # ends with SystemExit
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # a forked child must not return into the host's loop
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # recordings end here; a full shutdown of torch only takes time
        sys.stderr.flush()
        os._exit(code)


def _probe(name: str, kind: type[Any], request: dict[str, Any]) -> None:
    """Train, save the outcome beside the capture, and exit; never returns."""
    code = 1
    try:
        _begin_child(request["stderr"])
        folder = Path(request["capture"])
        given = _given(request)
        if "folder" in given:
            given = in_own_folder(given, folder.parent / WORK_FOLDER)
        trained = train(name, kind(**given), Recording(folder), quiet=True)
        if request.get("save_outcome", True):
            outcome = dataclasses.asdict(trained.outcome)
            (folder.parent / OUTCOME_FILE).write_text(
                strict_json.dumps(outcome, default=str), encoding="utf-8"
            )
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
