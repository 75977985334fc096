"""How easy it is to find one's way in the source tree: sizes, importers, files behind an update or a verb.

    python benchmarks/source_tree.py [FOLDER]

FOLDER is a checkout (default: this one). Only source code is read; nothing of the checkout is run, so any old
commit can be counted:

    git worktree add --detach /tmp/before COMMIT && python benchmarks/source_tree.py /tmp/before

Imports count at the top of a module and in functions, but not under `if TYPE_CHECKING`. The files that a verb
imports include modules it loads by name, such as "hotloop.cli.train_petri", but not those of processes that
it starts (`-m`), nor names that a package loads on first use.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

UPDATES = {"PPO": "ppo", "DQN": "dqn", "SAC": "sac"}
VERBS = ("run", "compare", "train")
# An update goes through these parts; networks and compiled learners are optional replacements.
UPDATE_PARTS = ("hotloop.rl.train.", "hotloop.rl.buffers.")
REPLACEABLE = ("hotloop.rl.train.fused", "hotloop.rl.train.networks")


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    lines: int
    imports: frozenset[str]
    """Modules of the package that it imports."""
    loads: frozenset[str]
    """Modules of the package that it loads by name."""
    in_functions: int
    """Import statements for the package inside functions."""

    @property
    def is_package(self) -> bool:
        return self.name.endswith(".__init__")


def read_modules(source: Path) -> dict[str, Module]:
    """Modules by dotted name; `hotloop/rl/__init__.py` is `hotloop.rl.__init__`."""
    files = {".".join(file.relative_to(source).with_suffix("").parts): file for file in source.rglob("*.py")}
    return {name: read_module(name, file, set(files)) for name, file in sorted(files.items())}


def read_module(name: str, file: Path, names: set[str]) -> Module:
    """Read one file; `names` are all modules of the package."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    in_functions = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    imports, hidden = set(), 0
    for node in ast.walk(tree):
        found = imported(node, names) if id(node) not in types_only else set()
        imports |= found
        hidden += bool(found) and id(node) in in_functions
    loads = set() if name.endswith(".__init__") else loaded_by_name(tree) & names
    return Module(name, len(text.splitlines()), frozenset(imports - {name}), frozenset(loads), hidden)


def loaded_by_name(tree: ast.Module) -> set[str]:
    """Strings of a module, without those that follow "-m" in the command of a new process."""
    programs = {
        id(program)
        for node in ast.walk(tree)
        if isinstance(node, (ast.List, ast.Tuple))
        for flag, program in zip(node.elts, node.elts[1:], strict=False)
        if isinstance(flag, ast.Constant) and flag.value == "-m"
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in programs
    }


def imported(node: ast.AST, names: set[str]) -> set[str]:
    """Modules of the package that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        wanted = {f"{node.module}.{alias.name}" for alias in node.names}
        known = {name for name in wanted if name in names or f"{name}.__init__" in names}
        return resolved(known | ({node.module} if known != wanted else set()), names)
    if isinstance(node, ast.Import):
        return resolved({alias.name for alias in node.names}, names)
    return set()


def resolved(wanted: set[str], names: set[str]) -> set[str]:
    return {found for name in wanted for found in (name, f"{name}.__init__") if found in names}


def reachable(modules: dict[str, Module], start: str) -> set[str]:
    """A module and all that it imports, directly or not."""
    found, left = set(), [start]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += modules[name].imports | modules[name].loads
    return found


def update_files(modules: dict[str, Module], algorithm: str) -> int:
    """Files of trainers and buffers that an algorithm's file imports, directly or not, itself included."""
    found = reachable(modules, f"hotloop.rl.train.{algorithm}")
    return sum(name.startswith(UPDATE_PARTS) and not name.startswith(REPLACEABLE) for name in found)


def duplicate_pairs(source: Path) -> str:
    """Pairs of places that share six or more lines, by the command `duplicates`."""
    if shutil.which("duplicates") is None:
        return "not counted: no command `duplicates`"
    words = ["duplicates", "--repo", str(source), "--most", "1", "--seconds", "120"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    count = re.match(r"(\d+) pairs?", said)
    if "incomplete:" in said or (count is None and not said.startswith("no duplicates")):
        return "not counted: the command did not read everything"
    return count[1] if count else "0"


def count_all(folder: Path) -> dict[str, str]:
    """All figures of a checkout."""
    source = folder / "src"
    modules = read_modules(source)
    importers = Counter(name for module in modules.values() for name in module.imports)
    plain = [module for module in modules.values() if not module.is_package]
    alone = [module for module in plain if importers[module.name] == 1]
    rows: dict[str, int | str] = {
        "files": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "modules under 60 lines with one importer": sum(module.lines < 60 for module in alone),
        "modules under 110 lines with one importer": sum(module.lines < 110 for module in alone),
        "modules under 40 lines": sum(module.lines < 40 for module in plain),
        "own imports inside functions": sum(module.in_functions for module in modules.values()),
    }
    for words, algorithm in UPDATES.items():
        rows[f"files of trainers and buffers behind a {words} update"] = update_files(modules, algorithm)
    for verb in VERBS:
        rows[f"files that `hotloop {verb}` imports"] = len(reachable(modules, f"hotloop.cli.{verb}"))
    rows["pairs of places that share six or more lines"] = duplicate_pairs(source)
    return {what: f"{value:,}" if isinstance(value, int) else value for what, value in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1])
    for what, value in count_all(parser.parse_args().folder).items():
        print(f"{what:<55} {value:>8}")


if __name__ == "__main__":
    main()
