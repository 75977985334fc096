"""Settings of a project, from `[tool.hotloop]` in pyproject.toml or from hotloop.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util import strict_json
from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader
from hotloop._util.redact import VARIABLE, compile_patterns
from hotloop.analysis.categories import CATEGORIES
from hotloop.instrument.trial_patches import NAMES

_CHOICES = tuple(c for c in CATEGORIES if c not in ("unattributed", "hotloop"))
_KEYS = ("categories", "redact", "keep")
_FILE = Reader(16 << 20, remedy="fix it or move it away")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a project."""

    category_patterns: tuple[tuple[str, str], ...] = ()  # (prefix or glob of region names, category)
    redact: tuple[str, ...] = ()  # regular expressions: names of arguments, or values, that are secret
    file: Path | None = None  # where they come from; None: defaults
    keep: tuple[str, ...] = ()  # patches of `hotloop try` for `hotloop boost --keep`


def load_settings(folder: Path | None = None) -> Settings:
    """Settings for `folder` (default: the current one), from the nearest file in it or above it.

    In the same folder hotloop.toml takes precedence over pyproject.toml. Raises HotloopError
    for an invalid file.
    """
    try:
        start = (folder or Path.cwd()).resolve()
    except FileNotFoundError:  # the current folder was deleted
        return Settings()
    for place in (start, *start.parents):
        own = place / "hotloop.toml"
        if own.is_file():
            table = _read(own)
            return _settings(_tools(table).get("hotloop", table), own)
        project = place / "pyproject.toml"
        if project.is_file():
            tools = _tools(_read(project))
            if "hotloop" in tools:
                return _settings(tools["hotloop"], project)
    return Settings()


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_FILE.read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _FILE.fail(file, f"cannot be read ({error})") from None


def _tools(table: dict[str, Any]) -> dict[str, Any]:
    tools = table.get("tool")
    return tools if isinstance(tools, dict) else {}


def _settings(table: Any, file: Path) -> Settings:
    if not isinstance(table, dict):
        raise HotloopError(f"{file}: [tool.hotloop] is {table!r}; it must be a table of settings.")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise HotloopError(f"{file}: unknown setting {unknown[0]!r}; known: {', '.join(_KEYS)}.")
    rules = table.get("categories", {})
    if not isinstance(rules, dict):
        raise HotloopError(f'{file}: categories is {rules!r}; write it as {{"my_env_*" = "environment"}}.')
    for pattern, category in rules.items():
        if not pattern:
            raise HotloopError(
                f"{file}: categories has an empty pattern, which would match every region; remove it."
            )
        if category not in _CHOICES:
            raise HotloopError(
                f"{file}: the category of {pattern!r} is {category!r}; choose one of {', '.join(_CHOICES)}."
            )
    return Settings(
        tuple(rules.items()),
        _patterns(table.get("redact", []), file),
        file,
        _names(table.get("keep", []), file),
    )


def _names(given: Any, file: Path) -> tuple[str, ...]:
    wrong = (
        given if not isinstance(given, list) else next((name for name in given if name not in NAMES), None)
    )
    if wrong is not None:
        raise HotloopError(f"{file}: keep has {wrong!r}; write it as a list of {', '.join(NAMES)}.")
    return tuple(given)


def patches_to_keep(file: Path) -> tuple[str, ...]:
    """The patches that a settings file keeps; raises HotloopError for an invalid file, or one without any."""
    table = _read(file)
    found = _settings(_tools(table).get("hotloop", table), file).keep
    if not found:
        raise HotloopError(f"{file} keeps no patches; write it with: hotloop try --save {file} train.py")
    return found


def save_patches_to_keep(file: Path, names: Sequence[str]) -> None:
    """Write `keep` into a hotloop.toml, and leave everything else in it as it is."""
    listed = ", ".join(strict_json.dumps(name) for name in names)
    line = f"keep = [{listed}]  # patches that hotloop try found faster"
    text = ""
    if file.exists():
        table = _read(file)
        _settings(_tools(table).get("hotloop", table), file)
        text = _FILE.read_text(file)
    found = re.search(r"^keep\s*=\s*\[[^\]]*\].*$", text, re.MULTILINE)
    if found is not None:
        text = text[: found.start()] + line + text[found.end() :]
    else:
        text = f"{line}\n{text}"  # in front: after a table it would belong to that
    write_atomically(file, text)


def _patterns(given: Any, file: Path) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) and text.strip() for text in given):
        raise HotloopError(f'{file}: redact is {given!r}; write it as ["--my-flag", "corp-[0-9]+"].')
    if any(re.search(r"\s", text) for text in given):
        raise HotloopError(f"{file}: redact has a pattern with a blank in it; write \\s instead.")
    compile_patterns(given)
    return tuple(given)


def apply_redaction(folder: Path | None = None) -> None:
    """Use the patterns of the project's settings in this process and in those it starts."""
    wanted = load_settings(folder).redact
    known = os.environ.get(VARIABLE, "").split()
    if any(text not in known for text in wanted):
        os.environ[VARIABLE] = " ".join(dict.fromkeys([*known, *wanted]))
