"""Damages files of every kind that hotloop reads and reads them with every verb, in this process.

Whatever a file holds or is, reading it must end soon, with strict JSON or clean text, or with one sentence
and exit code 2. Damage to a file with a checksum must be noticed. A checksum that fits is added in half of
the cases, so that what lies behind it is tried, too.

    python -m tests.campaign --kinds mutate_files --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import tempfile
import threading
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from hotloop._util.read_files import CHECKSUM, json_text
from tests.campaign.case import Case, seeds
from tests.campaign.corpus import Read, Seen, Target, make_corpus
from tests.campaign.mutations import (
    ESCAPES,
    INSTEAD,
    VALUES,
    damage_bytes,
    damage_fields,
    damage_json,
    exchange_file,
)
from tests.edited import resealed

LONGEST_S = 30.0  # of one reading; a millisecond to a second is usual
MORE_MEMORY_BYTES = 6 << 30
KEPT = Path(tempfile.gettempdir()) / "hotloop-campaign"  # files of failed cases
MAY_BE_SILENT = ("limits", "remember", "resume")  # they measure, tune or collect again
HOSTILE = ESCAPES.encode("utf-8", "replace").decode()[:30]  # begins a file name
ODD_IN_PAGES = re.compile("[\x07\x1b\u202e\ud800]")
ODD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]")
NOTICED = ("left out", "damaged", "checksum", "cannot be read", "not match", "no process has recorded")


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    targets, folder = corpus()
    with bounded_memory():
        for number in seeds(seed, seconds, count):
            yield one_case(number, targets, folder)
    changed = changed_by_reading()
    yield Case("read-only reading", seed, f"reading changed {', '.join(changed)}" if changed else None)


@cache
def corpus() -> tuple[list[Target], Path]:
    """All targets, each laid out in a folder of its name below the second value."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="hotloop-", dir=memory if os.access(memory, os.W_OK) else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a recording of microseconds
        targets = make_corpus(folder / "made")
    for target in targets:
        for name, content in target.files.items():
            (folder / target.name / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / target.name / name).write_bytes(content)
    return targets, folder


def one_case(seed: int, targets: list[Target], folder: Path) -> Case:
    """Damage one file, read it, put it back.

    What the common way to open it refuses is refused by all verbs; the rest is read by one of them.
    """
    rng = random.Random(seed)
    target = rng.choice(targets)
    verb, damage = rng.choice(sorted(target.reads)), plan_damage(rng, target, folder / target.name)
    must_notice = damage.noticeable and verb not in MAY_BE_SILENT
    whole = intact(target.name, verb) if must_notice else None
    place = folder / target.name
    damage.apply()
    try:
        failure, refused = (None, False) if target.open is None else judge(target.open, place, None)
        if failure is None and not refused:
            failure, _ = judge(target.reads[verb], place, whole)
        if failure is not None:
            kept = KEPT / f"{target.name}-{seed}".replace(" ", "-")
            shutil.rmtree(kept, ignore_errors=True)
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(place, kept, symlinks=True, ignore=_special)
            failure = f"{verb} with {damage.what} in {damage.file}: {failure} (kept in {kept})"
    finally:
        restore(target, place, damage.file)
    return Case(f"mutated {target.name}", seed, failure)


def _special(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied: FIFOs, devices, sockets and sparse files."""
    found = [Path(folder) / name for name in names]
    return [f.name for f in found if not f.is_dir() and (not f.is_file() or f.stat().st_size > 1 << 28)]


@cache
def intact(target_name: str, read_name: str) -> str | None:
    """What a verb prints for intact files; None if that differs from time to time."""
    targets, folder = corpus()
    (target,) = (one for one in targets if one.name == target_name)
    first, second = (target.reads[read_name](folder / target_name) for _ in range(2))
    assert first.code == 0, f"{read_name} of an intact {target_name}: {first.err}"
    return first.out if first.out == second.out else None


# -- damaging ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What is done to a file."""

    file: str
    what: str
    apply: Callable[[], object]
    noticeable: bool = False  # a checksum must notice it


def plan_damage(rng: random.Random, target: Target, place: Path) -> Damage:
    """Something to do to a file of the target."""
    parts = [name for name in sorted(target.files) if name.endswith(".part")]
    name = rng.choice(parts if parts and rng.random() < 0.5 else sorted(target.files))
    file, content = place / name, target.files[name]
    action = rng.random()
    if action < 0.12:
        if rng.random() < 0.3 and file.parent != place:
            file = file.parent
        others = [content, b"", target.files[rng.choice(sorted(target.files))]]
        instead = rng.choice(sorted(INSTEAD))
        return Damage(
            str(file.relative_to(place)), instead, lambda: exchange_file(rng, file, instead, others)
        )
    if action < 0.15:
        hostile = file.with_name(HOSTILE + file.name)
        return Damage(name, "a hostile name", lambda: hostile.write_bytes(damage_bytes(rng, content)))
    signed = rng.random() < 0.5
    change = _structured(rng, name, content) if rng.random() < 0.7 else None
    if change is not None:
        content = change(signed)
    else:
        content = damage_bytes(rng, content)
        if signed:
            content = resealed(content) if name.endswith(".part") else _resigned(content)
    old = "0.1" in target.name or "killed" in target.name or name.endswith((".toml", ".txt"))
    old |= "/messages/" in name  # written while the program runs, so without a checksum
    what = "damage and a fitting checksum" if signed else "damage"
    return Damage(name, what, lambda: file.write_bytes(content), not (signed or old))


def _damage_log(rng: random.Random, content: bytes) -> bytes:
    """Odd numbers in the header or the records of a message log."""
    data = bytearray(content)
    odd = (0, 1, 5, 255, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)
    for _ in range(rng.choice((1, 2, 20))):
        at = rng.choice((8, 16)) if rng.random() < 0.3 else 8 * rng.randrange(len(data) // 8 or 1)
        value = rng.choice((*odd, rng.getrandbits(64)))
        struct.pack_into("<Q", data, min(at, max(len(data) - 8, 0)), value)
    return bytes(data)


def _structured(rng: random.Random, name: str, content: bytes) -> Callable[[bool], bytes] | None:
    """Damage that keeps the form of the file; None for files without one."""
    if name.endswith((".safetensors", "agent")):
        return lambda signed: _damage_checkpoint(rng, content, signed)
    if name.endswith(".log"):
        return lambda signed: _damage_log(rng, content)
    if name.endswith(".part"):
        return lambda signed: resealed(damage_fields(rng, content)) if signed else damage_fields(rng, content)
    if name.endswith(".npz"):
        return lambda signed: _damage_npz(rng, content)
    if name.endswith(".toml"):
        return lambda signed: _damage_toml(rng, content)
    if not name.endswith(".json"):
        return None

    def change(signed: bool) -> bytes:
        before = json.loads(content)
        kept = before.pop(CHECKSUM, None)
        data = damage_json(rng, before)
        if not isinstance(data, dict):
            return _dumped(data)
        if signed and rng.random() < 0.5:
            return _resigned(_dumped(data))
        if signed:
            return _dumped(data)
        return _dumped(data if kept is None else data | {CHECKSUM: kept})

    return change


def _dumped(data: Any) -> bytes:
    return json.dumps(data).encode()


def _resigned(content: bytes) -> bytes:
    try:
        data = json.loads(content)
        return json_text({k: v for k, v in data.items() if k != CHECKSUM}).encode()
    except (ValueError, AttributeError, RecursionError):
        return content


def _damage_checkpoint(rng: random.Random, content: bytes, signed: bool) -> bytes:
    """The header, or the JSON inside it; signed ones have the version without a checksum."""
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    if signed:
        header["__metadata__"]["format_version"] = "2"
        header["__metadata__"].pop("checksum", None)
    part = rng.choice(("state", "config", "header"))
    if part == "header":
        header = damage_json(rng, header)
    else:
        inner = damage_json(rng, json.loads(header["__metadata__"][part]))
        header["__metadata__"][part] = json.dumps(inner)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def _damage_npz(rng: random.Random, content: bytes) -> bytes:
    """An array whose header says something else; the CRC of the file fits."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        unlucky = rng.choice(before.namelist())
        for name in before.namelist():
            data = before.read(name)
            if name == unlucky:
                at = data.index(b"{"), data.index(b"\n")
                shape = rng.choice(("(4398046511104,)", "()", "(-5, 8)", "(5, 1, 2)", "(10**30,)", "(0,)"))
                dtype = rng.choice(("<f8", "|O", "<f4", "|b1", "<U100000000", "<M8[s]", "x"))
                head = f"{{'descr': '{dtype}', 'fortran_order': {rng.random() < 0.2}, 'shape': {shape}, }}"
                data = data[: at[0]] + head.encode().ljust(at[1] - at[0]) + data[at[1] :]
                data = damage_bytes(rng, data) if rng.random() < 0.3 else data
            after.writestr(name, data, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return out.getvalue()


def _damage_toml(rng: random.Random, content: bytes) -> bytes:
    lines = content.decode().splitlines()
    at = rng.randrange(len(lines))
    key, equals, _ = lines[at].partition("=")
    if equals and rng.random() < 0.8:
        value = rng.choice((*VALUES, [[[1]]], [None], 1979))
        try:
            text = json.dumps(value).replace("null", "1979-05-27").replace("NaN", "nan")
        except ValueError:
            text = "1"
        lines[at] = f"{key}= {text.replace('Infinity', 'inf').replace(': ', ' = ')}"
    else:
        lines[at] = rng.choice(("", lines[at] * 2, "[" * 2000, "x = " + "[" * 500, lines[at][:-1], "\x1b[2J"))
    return "\n".join(lines).encode("utf-8", "replace")


def restore(target: Target, place: Path, damaged: str) -> None:
    """Put back what was damaged, and remove what was added beside it."""
    file = place / damaged
    for found in (file, *file.parent.glob(glob.escape(HOSTILE) + "*")):
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)
    for name, content in target.files.items():
        if name == damaged or name.startswith(f"{damaged}/"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
    shutil.rmtree(file.with_name(f"{file.name}.was"), ignore_errors=True)


def changed_by_reading() -> list[str]:
    """Files of the corpus that are not what they were: reading must not write."""
    targets, folder = corpus()
    expected = {folder / t.name / name: data for t in targets for name, data in t.files.items()}
    found = [f for t in targets for f in (folder / t.name).rglob("*") if f.is_file()]
    return sorted(
        str(file.relative_to(folder))
        for file in {*expected, *found}
        if not file.is_file() or file.read_bytes() != expected.get(file)
    )


# -- judging -------------------------------------------------------------------------------------


class _TooSlow(BaseException):
    pass


def judge(read: Read, place: Path, whole: str | None) -> tuple[str | None, bool]:
    """What is wrong with how a damaged file was read, and whether it was refused.

    `whole` is what intact files give, if damage must be noticed.
    """
    with warnings.catch_warnings(record=True) as warned, time_limit():
        warnings.simplefilter("always")
        try:
            seen = read(place)
        except _TooSlow:
            return f"took longer than {LONGEST_S:g} s", False
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} at {Path(where.filename).name}:{where.lineno}", False
    if warned:
        return f"{warned[0].category.__name__}: {warned[0].message}", False
    return problem_of(seen, whole), seen.code == 2


def problem_of(seen: Seen, whole: str | None) -> str | None:
    if seen.code not in (0, 2):
        return f"exit code {seen.code}"
    if seen.code == 2:
        last = seen.err.strip().splitlines()[-1:]
        if not last or not last[0].startswith("hotloop: ") or seen.out:
            return f"exit code 2 without a sentence: {seen.out[-100:]!r} {seen.err[-200:]!r}"
        return _not_printable(seen.err)
    if seen.is_json:
        try:
            json.loads(seen.out, parse_constant=_refuse)
        except ValueError as error:
            return f"no strict JSON: {error}"
    failure = _not_printable(seen.err) or _not_printable(seen.out)
    if failure is None and whole is not None and seen.out != whole:
        text = seen.out + seen.err
        if not any(word in text for word in NOTICED):
            return "damage was not noticed"
    return failure


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _not_printable(text: str) -> str | None:
    if text.isascii() and text.replace("\n", "").isprintable():
        return None
    page = text[:15].lower() == "<!doctype html>"  # its scripts have characters of all kinds
    odd = ODD_IN_PAGES.search(text) if page else ODD.search(text)
    return None if odd is None else f"{odd[0]!r} reaches the terminal"


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Inside, a reader that believes a giant header gets a MemoryError, and the machine stays usable."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    wanted = used + MORE_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (min(wanted, hard) if hard > 0 else wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
