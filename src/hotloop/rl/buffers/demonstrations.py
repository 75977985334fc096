"""Demonstrations on disk: one npz file for each episode beside `schema.json`, which says what is in them.

An episode's arrays have the names that Minari uses: `observations` [steps + 1, ...], the last one that
after the last step; `actions`, `rewards`, `terminations`, `truncations` [steps, ...]. Nothing is pickled.
A file is written under another name and then renamed, so whatever has an episode's name is a whole episode.

    store = DemonstrationStore(Path("demonstrations"))
    data = store.load()                                # every episode, one after the other
    learn, held_out = data.split(0.1, seed=0)          # by episode: no episode is in both
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically

FORMAT, VERSION = "hotloop-demonstrations", 1  # 1: the first
NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
_DIGITS = 6


class DemonstrationError(HotloopError):
    """A folder or file that does not hold the demonstrations wanted."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode; first index the step."""

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
    """The number of each in its store."""

    def samples(self) -> Samples:
        """All steps of all episodes in order, as float32 arrays of their own."""
        seen = [one.observations[:-1].reshape(len(one), -1) for one in self.episodes]
        return Samples(
            np.ascontiguousarray(np.concatenate(seen), dtype=np.float32),
            np.ascontiguousarray(np.concatenate([one.actions for one in self.episodes]), dtype=np.float32),
        )

    def split(self, held_out_fraction: float, seed: int) -> tuple[Demonstrations, Demonstrations]:
        """Episodes to learn from and episodes held out, at least one of each, chosen by the seed."""
        count = len(self.episodes)
        if count < 2:
            raise DemonstrationError(
                f"{count} episode cannot be split into one to learn from and one held out; "
                "collect at least 2 episodes."
            )
        held = min(max(round(count * held_out_fraction), 1), count - 1)
        order = np.random.default_rng(seed).permutation(count)
        return self._of(np.sort(order[held:])), self._of(np.sort(order[:held]))

    def _of(self, places: Iterable[Any]) -> Demonstrations:
        chosen = [int(place) for place in places]
        return Demonstrations(
            tuple(self.episodes[place] for place in chosen), tuple(self.numbers[place] for place in chosen)
        )


def schema(env: str, settings: Mapping[str, Any], seed: int, observation: Any, action: Any) -> dict[str, Any]:
    """What `schema.json` says: the task, the seed of episode i (seed + i), every array's type and shape."""

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
        """Where an episode is kept."""
        return self.folder / f"episode-{number:0{_DIGITS}d}.npz"

    def numbers(self) -> list[int]:
        """The episodes that are there, in order."""
        found = []
        for file in self.folder.glob("episode-*.npz"):
            digits = file.stem.removeprefix("episode-")
            if digits.isdigit():
                found.append(int(digits))
        return sorted(found)

    # ---- writing

    def begin(self, wanted: dict[str, Any], *, resume: bool) -> list[int]:
        """Make the folder ready for episodes of this schema; returns the numbers of those already there.

        Without `resume`, episodes of an earlier collection are deleted.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "schema.json"
        if resume and file.is_file():
            known = self.schema()
            if known != wanted:
                differing = sorted(name for name in known | wanted if known.get(name) != wanted.get(name))
                raise DemonstrationError(
                    f"{self.folder} holds demonstrations of another kind ({', '.join(differing)} "
                    "differ); collect into another folder, or without resuming."
                )
            return [number for number in self.numbers() if self._whole(number)]
        for number in self.numbers():
            self.file(number).unlink()
        write_atomically(file, json.dumps(wanted, indent=1) + "\n")
        return []

    def write(self, number: int, episode: Episode) -> None:
        """Keep an episode; a failure (a full disk) leaves nothing of it behind and every other one whole."""
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".episode.")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(
                    file,
                    observations=episode.observations,
                    actions=episode.actions,
                    rewards=episode.rewards,
                    terminations=episode.terminations,
                    truncations=episode.truncations,
                )
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.file(number))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    # ---- reading

    def schema(self) -> dict[str, Any]:
        """What `schema.json` says, once it is known to be ours."""
        file = self.folder / "schema.json"
        try:
            known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise DemonstrationError(
                f"there are no demonstrations in {self.folder}; collect some first "
                "(hotloop train imitate --stage demos)."
            ) from None
        except ValueError as error:
            raise DemonstrationError(f"{file} is no JSON ({error}); collect demonstrations anew.") from None
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            raise DemonstrationError(
                f"{file} is of format {known.get('format')!r}, version {known.get('version')!r}; "
                f"this hotloop reads {FORMAT!r}, version {VERSION}."
            )
        return known

    def read(self, number: int) -> Episode:
        """One episode; raises DemonstrationError when its file is cut or does not fit the schema."""
        return self._read(number, self.schema())

    def load(self) -> Demonstrations:
        """Every episode; raises DemonstrationError when there is none or one is damaged."""
        known, numbers = self.schema(), self.numbers()
        if not numbers:
            raise DemonstrationError(
                f"there is no episode in {self.folder}; collect some first "
                "(hotloop train imitate --stage demos)."
            )
        return Demonstrations(tuple(self._read(number, known) for number in numbers), tuple(numbers))

    def _read(self, number: int, known: dict[str, Any]) -> Episode:
        file = self.file(number)
        try:
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in NAMES}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DemonstrationError(
                f"{file} is cut or damaged ({error}); delete it and collect again with --resume."
            ) from error
        steps = len(arrays["actions"])
        for name, array in arrays.items():
            told = known["arrays"][name]
            rows, *rest = told["shape"]
            shape = [steps + 1 if rows == "steps + 1" else steps, *rest]
            if list(array.shape) != shape or str(array.dtype) != told["dtype"]:
                raise DemonstrationError(
                    f"{file} does not fit its schema: {name} is {array.dtype} {list(array.shape)}, not "
                    f"{told['dtype']} {shape}; delete it and collect again with --resume."
                )
        return Episode(**arrays)

    def _whole(self, number: int) -> bool:
        try:
            self.read(number)
        except DemonstrationError:
            return False
        return True
