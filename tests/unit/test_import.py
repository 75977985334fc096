"""Importing hotloop is light and changes nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes.scripts import environment


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment("auto"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_numpy_alone() -> None:
    out = run(
        """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {"torch", "gymnasium", "numba", "scipy", "rich", "tyro", "plotly",
                                          "matplotlib", "psutil"}:
                    raise ImportError(f"{name} is not to be imported")
        sys.meta_path.insert(0, Refuse())
        import hotloop
        p = hotloop.Profiler().start()
        with p.profile("a"):
            pass
        print(p.stats("a").calls)
        p.stop()
        """
    )
    assert out.strip() == "1"


def test_import_is_cheap_in_work_done() -> None:
    """No wall time is asserted here (that is `make bench`): the number of modules stands for it."""
    out = run(
        """
        import sys, numpy
        before = set(sys.modules)
        import hotloop
        new = sorted(set(sys.modules) - before)
        print(len(new), sum(not n.startswith("hotloop") for n in new), new)
        """
    )
    modules, foreign = map(int, out.split()[:2])
    assert modules <= 62 and foreign < 30, out


def test_import_changes_nothing() -> None:
    run(
        """
        import signal, sys, threading, warnings, atexit, os
        state = lambda: (signal.getsignal(2), signal.getsignal(15), sys.excepthook, sys.gettrace(),
                         sys.getprofile(), threading.active_count(), list(warnings.filters), dict(os.environ),
                         len(os.listdir("/proc/self/task")), list(sys.meta_path), list(sys.path))
        before = state()
        import hotloop
        assert state() == before
        """
    )


def test_names_are_listed_and_a_typo_gets_a_sentence() -> None:
    import hotloop

    assert {"profile", "profile_function", "progress", "start", "stop", "Profiler", "load"} <= set(
        dir(hotloop)
    )
    with pytest.raises(AttributeError, match="it offers"):
        _ = hotloop.profil


def test_without_the_compiled_core_the_twin_records_and_says_so_once(tmp_path: Path) -> None:
    program = """
        import sys
        sys.modules["hotloop.measure._core"] = None
        import hotloop
        hotloop.start(sys.argv[1] if len(sys.argv) > 1 else None)
        with hotloop.profile("a"):
            pass
        hotloop.stop()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "capture")],
        env=environment("auto"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the compiled core is not available") == 1
    import hotloop

    assert hotloop.load(tmp_path / "capture").processes[0].core == "python"


def test_an_unknown_core_does_not_end_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hotloop; hotloop.Profiler().start().stop(); print('trained')"],
        env=environment("fortran"),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "trained\n"
    assert "HOTLOOP_CORE is 'fortran' and is ignored; use" in done.stderr


def test_every_public_name_is_documented() -> None:
    import hotloop

    missing = [name for name in hotloop.__all__ if not inspect.getdoc(getattr(hotloop, name))]
    assert not missing
