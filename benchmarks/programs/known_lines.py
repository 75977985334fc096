"""Programs that know where their time goes: known_lines.py CASE SECONDS FILE.

Each case calls a few functions in turns and times them itself, with two clock readings around each call.
FILE gets {thread name: {function: seconds}} as JSON; what is left of a thread's time is its own loop.
"""

import asyncio
import copy
import hashlib
import json
import re
import sys
import threading
import time
import zlib
from collections import defaultdict

TEXT = ("the quick brown fox jumps over the lazy dog " * 200).encode()
BLOCK = bytes(range(256)) * 4096
RECORDS = [{"id": number, "tags": ["a", "b"], "value": number / 7} for number in range(60)]


def compute(count=20_000):
    total = 0
    for number in range(count):
        total += number * number
    return total


def compute_less():
    total = 0
    for number in range(6_000):
        total ^= number
    return total


def sleep():
    time.sleep(0.003)


def holds_gil():
    return sorted(range(30_000), key=str)[0] + 3**60_000 % 7


def releases_gil():
    return hashlib.sha256(BLOCK).digest(), zlib.compress(TEXT, 9)


def short_call(number):
    return number + 1


def short_calls():
    number = 0
    for _ in range(20_000):
        number = short_call(number)
    return number


def generate():
    for number in range(8_000):
        yield number * 3 % 7


def consume():
    total = 0
    for number in generate():
        total += number
    return total


def recurse(depth):
    return 1 + recurse(depth - 1) if depth else sum(range(2_000))


def recurse_deeply():
    return recurse(400)


def in_libraries():
    return json.dumps(RECORDS, indent=1)


def in_more_libraries():
    return copy.deepcopy(RECORDS), re.sub(rb"[aeiou]", lambda match: match.group().upper(), TEXT)


CASES = {
    "compute": [compute, compute_less],
    "sleep": [compute, sleep],
    "C call that holds the GIL": [compute, holds_gil],
    "C call that releases the GIL": [compute, releases_gil],
    "short calls": [short_calls, compute],
    "generators": [consume, compute],
    "recursion": [recurse_deeply, compute],
    "library stacks": [in_libraries, in_more_libraries, compute],
}
THREADS = {
    "threads": {"one": [compute, sleep], "two": [releases_gil, compute_less], "three": [sleep, holds_gil]}
}


def take_turns(functions, seconds, truth):
    clock = time.perf_counter
    end = clock() + seconds
    while clock() < end:
        for function in functions:
            start = clock()
            function()
            truth[function.__name__] += clock() - start


async def wait_a_little():
    await asyncio.sleep(0.004)


async def compute_in_task(truth):
    start = time.perf_counter()
    compute()
    truth["compute"] += time.perf_counter() - start


async def async_turns(seconds, truth):
    clock = time.perf_counter
    end = clock() + seconds
    while clock() < end:
        await wait_a_little()
        await asyncio.gather(compute_in_task(truth), compute_in_task(truth))


def main(case, seconds, file):
    truth: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    began = time.perf_counter()
    if case == "async":
        asyncio.run(async_turns(seconds, truth["MainThread"]))
    elif case in THREADS:
        threads = [
            threading.Thread(target=take_turns, args=(functions, seconds, truth[name]), name=name)
            for name, functions in THREADS[case].items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        take_turns(CASES[case], seconds, truth["MainThread"])
    with open(file, "w") as out:
        json.dump({"wall_s": time.perf_counter() - began, "truth": truth}, out)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
