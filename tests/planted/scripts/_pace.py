"""How long a script goes on: a set amount of work, however busy the machine, and never too short a run.

The loop must not ask the kernel for the time: there, a busy machine takes the core away, and all that was
lost would land between the regions. `perf_counter` does not.
"""

import time


def turns(least, seconds=1.0):
    """Count turns of the loop, from 1, until `least` are done and `seconds` of wall time are over."""
    until = time.perf_counter() + seconds
    done = 0
    while done < least or time.perf_counter() < until:
        done += 1
        yield done
