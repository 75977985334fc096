"""Programs of ours print in any locale, and end well when nobody can read what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.scripts import environment

PROGRAM = """
import sys
from hotloop.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def hotloop(*words: str, **how: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", PROGRAM, *words]
    how = {"stderr": subprocess.PIPE, "env": environment("auto"), "timeout": 60} | how
    return subprocess.run(command, **how)  # type: ignore[call-overload]


def test_a_full_disk_is_one_sentence_and_a_closed_stream_is_none() -> None:
    with open("/dev/full", "wb") as full:
        done = hotloop("--help", stdout=full)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "hotloop: The output cannot be written (No space left on device); send it to another place."
    ]
    with open("/dev/full", "wb") as full:  # what is wrong cannot be said either
        assert hotloop("nonsense", stdout=full, stderr=full).returncode == 2
    script = f"{sys.executable} -c '{PROGRAM}' --help >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], env=environment("auto")).returncode == 0


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = hotloop("--help", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:surrogateescape"])
def test_any_name_can_be_shown_in_any_locale(encoding: str, tmp_path: Path) -> None:
    from hotloop import Profiler

    profiler = Profiler().start(tmp_path / "run")
    for name in ("пример", "a very long name that is cut in the middle, since there is no room", "\ud800"):
        with profiler.profile(name):
            pass
    profiler.stop()
    env = environment("auto") | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = hotloop("show", str(tmp_path / "run"), stdout=subprocess.PIPE, env=env)
    text = done.stdout.decode("latin-1")
    assert done.returncode == 0, done.stderr
    assert r"\u043f\u0440\u0438" in text and r"\ud800" in text and "a very long~" in text


def test_foreign_names_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hotloop.cli.main import main

    assert main(["show", str(tmp_path / "\x1b]0;owned\x07")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("hotloop: There is no capture at ") and "\x1b" not in err
    assert main(["\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err
