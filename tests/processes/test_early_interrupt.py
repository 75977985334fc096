"""Ctrl-C while the command is imported ends with one line; importing hotloop elsewhere changes no handler."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEND_WHILE_IMPORTING = """
import os, signal, sys
sys.argv = {argv!r}
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from hotloop.cli.main import main
print("imported")
"""


@pytest.mark.parametrize("module", ["hotloop.measure.profiler", "hotloop.cli.main", "hotloop._util.console"])
def test_the_command_says_so_in_one_line(module: str) -> None:
    code = SEND_WHILE_IMPORTING.format(argv=["/some/bin/hotloop", "run", "x.py"], module=module)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "hotloop: interrupted\n")


def test_a_script_gets_its_keyboard_interrupt() -> None:
    code = SEND_WHILE_IMPORTING.format(argv=["train.py"], module="hotloop.measure.profiler")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "KeyboardInterrupt" in ended.stderr and "imported" not in ended.stdout


@pytest.mark.parametrize("argv", [["hotloop", "version"], ["train.py"]])
def test_the_handler_of_the_system_is_back_afterwards(argv: list[str]) -> None:
    code = (
        f"import sys, signal; sys.argv = {argv!r}\n"
        "from hotloop.cli.main import main\n"
        "main(['version'])\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
