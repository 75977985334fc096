"""Settings of a project, from `[tool.hotloop]` in pyproject.toml or from hotloop.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.analysis.categories import CATEGORIES

_CHOICES = tuple(c for c in CATEGORIES if c not in ("unattributed", "hotloop"))
_KEYS = ("categories",)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a project."""

    category_patterns: tuple[tuple[str, str], ...] = ()  # (prefix or glob of region names, category)
    file: Path | None = None  # where they come from; None: defaults


def load_settings(folder: Path | None = None) -> Settings:
    """Settings for `folder` (default: the current one), from the nearest file in it or above it.

    In the same folder hotloop.toml takes precedence over pyproject.toml. Raises HotloopError
    for an invalid file.
    """
    start = (folder or Path.cwd()).resolve()
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
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HotloopError(f"{file} cannot be read ({error}); fix it or move it away.") from error


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
    return Settings(tuple(rules.items()), file)
