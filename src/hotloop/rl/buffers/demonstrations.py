"""Demonstrations on disk: one npz file per episode, and `schema.json`, which describes their arrays.

The arrays have the names that Minari uses: `observations` [steps + 1, ...], `actions`, `rewards`,
`terminations`, `truncations` [steps, ...]. Nothing is pickled. A file is written under another name and then
renamed, so every file with the name of an episode is complete.

    store = DemonstrationStore(Path("demonstrations"))
    data = store.load()                                # all episodes, in memory
    learn, held_out = data.split(0.1, seed=0)          # by episode: no episode is in both
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import FileError
from hotloop._util.files import remove_all_unfinished, replacing, write_atomically
from hotloop._util.read_files import Reader, files_in, json_text
from hotloop._util.visible import visible

FORMAT, VERSION = "hotloop-demonstrations", 1  # 1: the first
NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
_DIGITS = 6
_MOST_BYTES = 4 << 30  # of one episode


class DemonstrationError(FileError):
    """Demonstrations are missing, damaged, or of another task."""


_SCHEMA = Reader(1 << 20, DemonstrationError, "collect the demonstrations again", follow=False)
_EPISODE = Reader(_MOST_BYTES, DemonstrationError, "delete it and collect again with --resume", follow=False)


class ArraySchema(TypedDict):
    """Type and shape of an array; the first index is the step."""

    dtype: str
    shape: list[int | Literal["steps", "steps + 1"]]


class Schema(TypedDict):
    """The content of `schema.json`."""

    format: str
    version: int
    env: str
    env_settings: dict[str, Any]
    seed: int
    arrays: dict[str, ArraySchema]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode; the first index is the step."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Samples:
    """Pairs to clone: `observations` [samples, ...] and the expert's `actions` [samples, ...]."""

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Episodes in memory."""

    episodes: tuple[Episode, ...]
    numbers: tuple[int, ...]
    """The number of each episode in its store."""

    def samples(self) -> Samples:
        """All steps of all episodes in order, as new float32 arrays."""
        seen = [one.observations[:-1].reshape(len(one), -1) for one in self.episodes]
        return Samples(
            np.ascontiguousarray(np.concatenate(seen), dtype=np.float32),
            np.ascontiguousarray(np.concatenate([one.actions for one in self.episodes]), dtype=np.float32),
        )

    def split(self, held_out_fraction: float, seed: int) -> tuple[Demonstrations, Demonstrations]:
        """Episodes for training and held-out episodes, at least one of each, drawn with the seed."""
        count = len(self.episodes)
        if count < 2:
            raise DemonstrationError(
                f"{count} episode cannot be split into training and held-out episodes; collect at least 2."
            )
        held = min(max(round(count * held_out_fraction), 1), count - 1)
        order = np.random.default_rng(seed).permutation(count)
        return self._subset(np.sort(order[held:])), self._subset(np.sort(order[:held]))

    def _subset(self, indices: Iterable[Any]) -> Demonstrations:
        chosen = [int(index) for index in indices]
        return Demonstrations(
            tuple(self.episodes[index] for index in chosen), tuple(self.numbers[index] for index in chosen)
        )


def schema(env: str, settings: Mapping[str, Any], seed: int, observation: Any, action: Any) -> dict[str, Any]:
    """The content of `schema.json`: task, seed (of episode i: seed + i), type and shape of every array."""

    def array(dtype: Any, *shape: Any) -> dict[str, Any]:
        return {"dtype": str(np.dtype(dtype)), "shape": list(shape)}

    return {
        "format": FORMAT,
        "version": VERSION,
        "env": env,
        "env_settings": dict(settings),
        "seed": seed,
        "arrays": {
            "observations": array(observation.dtype, "steps + 1", *observation.shape),
            "actions": array(action.dtype, "steps", *action.shape),
            "rewards": array(np.float64, "steps"),
            "terminations": array(np.bool_, "steps"),
            "truncations": array(np.bool_, "steps"),
        },
    }


class DemonstrationStore:
    """A folder of episodes."""

    def __init__(self, folder: Path):
        self.folder = folder

    def file(self, number: int) -> Path:
        """The file of an episode."""
        return self.folder / f"episode-{number:0{_DIGITS}d}.npz"

    def numbers(self) -> list[int]:
        """The numbers of the episodes in the folder, in order."""
        names = [file.stem for file in files_in(self.folder, ".npz", DemonstrationError, most=10**7)]
        digits = [name.removeprefix("episode-") for name in names if name.startswith("episode-")]
        known = [int(one) for one in digits if one.isascii() and one.isdecimal() and len(one) < 16]
        return sorted({number for number in known if self.file(number).stem in names})

    # ---- writing

    def begin(self, wanted: dict[str, Any], *, resume: bool) -> list[int]:
        """Prepare the folder for episodes of this schema; returns the numbers of those already there.

        Without `resume`, earlier episodes are deleted.
        """
        file = self.folder / "schema.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_all_unfinished(self.folder)
        except OSError as error:
            raise DemonstrationError(
                f"{self.folder} cannot be written ({error.strerror}); choose another folder."
            ) from None
        if resume and (os.path.lexists(file) or self.numbers()):  # never delete what was to be kept
            known = self.schema()
            if known != wanted:
                differing = sorted(
                    visible(name) for name in known | wanted if known.get(name) != wanted.get(name)
                )
                raise DemonstrationError(
                    f"{self.folder} holds demonstrations with other settings ({', '.join(differing)} "
                    "differ); use another folder, or collect without resume."
                )
            return [number for number in self.numbers() if self._is_complete(number)]
        try:
            for number in self.numbers():
                self.file(number).unlink()
            write_atomically(file, json_text(wanted))
        except OSError as error:
            raise DemonstrationError(
                f"{self.folder} cannot be written ({error.strerror}); choose another folder."
            ) from None
        return []

    def write(self, number: int, episode: Episode) -> None:
        """Write an episode; a failure (such as a full disk) leaves no partial file."""
        with replacing(self.file(number)) as file:
            np.savez(
                file,
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
            )

    # ---- reading

    def schema(self) -> dict[str, Any]:
        """The content of `schema.json`; raises DemonstrationError when it is missing or not ours."""
        file = self.folder / "schema.json"
        if not os.path.lexists(file) and not self.numbers():
            raise DemonstrationError(
                f"There are no demonstrations in {self.folder}; collect some first "
                "(hotloop train imitate --stage demos)."
            )
        known = _SCHEMA.read_object(file, lambda data: self._check_version(data, file))
        try:
            conform(known, Schema, "schema.json")
            missing = [name for name in NAMES if name not in known["arrays"]]
            if missing or any(not known["arrays"][name]["shape"] for name in NAMES):
                raise Misfit(f"schema.json has no {missing[0]!r}" if missing else "schema.json has no shapes")
        except Misfit as misfit:
            raise _SCHEMA.fail(file, f"is damaged ({misfit})") from None
        return known

    def _check_version(self, data: Any, file: Path) -> None:
        found = data if isinstance(data, dict) else {}
        if found.get("format") != FORMAT or found.get("version") != VERSION:
            raise DemonstrationError(
                f"{file} has format {found.get('format')!r}, version {found.get('version')!r}; "
                f"this hotloop reads {FORMAT!r}, version {VERSION}."
            )

    def read(self, number: int) -> Episode:
        """One episode; raises DemonstrationError when its file is truncated or does not match the schema."""
        return self._read(number, self.schema())

    def load(self) -> Demonstrations:
        """All episodes; raises DemonstrationError when there are none or one is damaged."""
        known, numbers = self.schema(), self.numbers()
        if not numbers:
            raise DemonstrationError(
                f"There is no episode in {self.folder}; collect some first "
                "(hotloop train imitate --stage demos)."
            )
        return Demonstrations(tuple(self._read(number, known) for number in numbers), tuple(numbers))

    def _read(self, number: int, known: dict[str, Any]) -> Episode:
        file = self.file(number)
        try:
            with open(_EPISODE.open_file(file), "rb") as opened, zipfile.ZipFile(opened) as content:
                arrays = {name: _read_array(content, name) for name in NAMES}
        except FileError:
            raise
        except Exception as error:  # a dozen kinds, depending on what is damaged
            raise _EPISODE.fail(file, f"is truncated or damaged ({error})") from None
        steps = arrays["actions"].shape[0] if arrays["actions"].ndim else -1
        for name, array in arrays.items():
            expected = known["arrays"][name]
            rows, *rest = expected["shape"]
            shape = [steps + 1 if rows == "steps + 1" else steps, *rest]
            if list(array.shape) != shape or str(array.dtype) != expected["dtype"]:
                raise DemonstrationError(
                    f"{file} does not match its schema: {name} is {array.dtype} {list(array.shape)}, not "
                    f"{visible(expected['dtype'])} {shape}; delete it and collect again with --resume."
                )
        return Episode(**arrays)

    def _is_complete(self, number: int) -> bool:
        try:
            self.read(number)
        except DemonstrationError:
            return False
        return True


def _read_array(content: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an npz file, which is never larger than what the file holds of it."""
    entry = content.getinfo(f"{name}.npy")
    if entry.file_size > _MOST_BYTES:
        raise ValueError(f"{name} has {entry.file_size:,} bytes")
    data = content.read(entry)  # checks its CRC
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy evaluates the header, and Python may not like its escapes
        shape, by_columns, dtype = read_header(stream)
    if dtype.hasobject or by_columns or len(data) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} is said to be {dtype} {list(shape)}")
    return np.frombuffer(data, dtype=dtype, offset=stream.tell()).reshape(shape).copy()
