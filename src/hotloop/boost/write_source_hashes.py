"""Writes `source_hashes.py` from unpacked wheels of Stable-Baselines3 and sb3-contrib.

`python -m hotloop.boost.write_source_hashes FOLDER...`, one folder for each version, named after it. Read the
differences between the versions first: a hash says that the kernels do what that function does.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

from hotloop.boost.install import ALGORITHMS
from hotloop.boost.known_sources import hash_of_source


def hashes_in(folder: Path) -> dict[str, str]:
    """Hash of every function in a folder of packages, by dotted name."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        _visit(ast.parse(source), module, source.splitlines(keepends=True), found)
    return found


def _visit(node: ast.AST, name: str, lines: list[str], found: dict[str, str]) -> None:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef):
            _visit(inner, f"{name}.{inner.name}", lines, found)
        elif isinstance(inner, ast.FunctionDef):
            first = min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)])
            found[f"{name}.{inner.name}"] = hash_of_source("".join(lines[first - 1 : inner.end_lineno]))


def write_table(folders: list[Path]) -> None:
    """Write the table for the functions that our modules stand in for."""
    tables = {folder.name: hashes_in(folder) for folder in folders}
    names: set[str] = set()
    for ours in sorted({ours for _, ours in ALGORITHMS.values() if importlib.util.find_spec(ours)}):
        names |= set(importlib.import_module(ours).SOURCES)
    lines = [
        '"""Hashes of the library functions that kernels replace; written by `write_source_hashes.py`."""',
        "",
        f'VERSIONS = "{min(tables)} to {max(tables)}"',
        "HASHES: dict[str, set[str]] = {",
    ]
    for name in sorted(names):
        hashes = sorted({table[name] for table in tables.values() if name in table})
        if not hashes:
            raise SystemExit(f"{name} is in none of the folders")
        words = ", ".join(f'"{one}"' for one in hashes)
        lines.append(f'    "{name}": {{{words}}},')
    Path(__file__).with_name("source_hashes.py").write_text("\n".join([*lines, "}", ""]), encoding="utf-8")


if __name__ == "__main__":
    write_table([Path(word) for word in sys.argv[1:]])
