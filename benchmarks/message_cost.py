"""What does recording add to a message through a pipe of multiprocessing?

One process sends to itself, so that nothing waits: CPU time of a `send` and a `recv`, least of several
rounds, without hotloop and with everything that `hotloop run` installs. Each in a process of its own.
Run: python benchmarks/message_cost.py [--messages 20000] [--rounds 12]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

import hotloop
from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.instrument.bootstrap import instrument_process


def cpu_ns_per_message(messages: int, rounds: int) -> float:
    """Least CPU time of a message, sent and received."""
    one, other = multiprocessing.Pipe()
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time_ns()
        for number in range(messages):
            one.send(number)
            other.recv()
        least = min(least, (time.process_time_ns() - began) / messages)
    return least


def main() -> None:
    """Measure both, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", choices=("plain", "recorded"))
    given = parser.parse_args()
    if given.only is None:
        for name in ("plain", "recorded"):
            subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        if given.only == "recorded":
            os.environ[CAPTURE_VARIABLE] = os.path.join(folder, "capture")
            instrument_process()
        cost_ns = cpu_ns_per_message(given.messages, given.rounds)
        hotloop.stop()
        print(f"{given.only}: {cost_ns:,.0f} ns of CPU per message")


if __name__ == "__main__":
    main()
