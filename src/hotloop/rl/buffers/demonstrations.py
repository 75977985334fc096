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
import json
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
    """Demonstrations are missing, damaged, or of another task."""


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
        found = []
        for file in self.folder.glob("episode-*.npz"):
            digits = file.stem.removeprefix("episode-")
            if digits.isdigit():
                found.append(int(digits))
        return sorted(found)

    # ---- writing

    def begin(self, wanted: dict[str, Any], *, resume: bool) -> list[int]:
        """Prepare the folder for episodes of this schema; returns the numbers of those already there.

        Without `resume`, earlier episodes are deleted.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "schema.json"
        if resume and file.is_file():
            known = self.schema()
            if known != wanted:
                differing = sorted(name for name in known | wanted if known.get(name) != wanted.get(name))
                raise DemonstrationError(
                    f"{self.folder} holds demonstrations with other settings ({', '.join(differing)} "
                    "differ); use another folder, or collect without resume."
                )
            return [number for number in self.numbers() if self._is_complete(number)]
        for number in self.numbers():
            self.file(number).unlink()
        write_atomically(file, json.dumps(wanted, indent=1) + "\n")
        return []

    def write(self, number: int, episode: Episode) -> None:
        """Write an episode; a failure (such as a full disk) leaves no partial file."""
        content = io.BytesIO()
        np.savez(
            content,
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminations,
            truncations=episode.truncations,
        )
        write_atomically(self.file(number), content.getvalue())

    # ---- reading

    def schema(self) -> dict[str, Any]:
        """The content of `schema.json`; raises DemonstrationError when it is missing or not ours."""
        file = self.folder / "schema.json"
        try:
            known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise DemonstrationError(
                f"There are no demonstrations in {self.folder}; collect some first "
                "(hotloop train imitate --stage demos)."
            ) from None
        except ValueError as error:
            raise DemonstrationError(
                f"{file} is not JSON ({error}); collect the demonstrations again."
            ) from None
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            raise DemonstrationError(
                f"{file} has format {known.get('format')!r}, version {known.get('version')!r}; "
                f"this hotloop reads {FORMAT!r}, version {VERSION}."
            )
        return known

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
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in NAMES}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DemonstrationError(
                f"{file} is truncated or damaged ({error}); delete it and collect again with --resume."
            ) from error
        steps = len(arrays["actions"])
        for name, array in arrays.items():
            expected = known["arrays"][name]
            rows, *rest = expected["shape"]
            shape = [steps + 1 if rows == "steps + 1" else steps, *rest]
            if list(array.shape) != shape or str(array.dtype) != expected["dtype"]:
                raise DemonstrationError(
                    f"{file} does not match its schema: {name} is {array.dtype} {list(array.shape)}, not "
                    f"{expected['dtype']} {shape}; delete it and collect again with --resume."
                )
        return Episode(**arrays)

    def _is_complete(self, number: int) -> bool:
        try:
            self.read(number)
        except DemonstrationError:
            return False
        return True
