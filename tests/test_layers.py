"""Which part may import which: the table, and checks that the code follows it and has no import cycles.

Imports are found wherever they hide: in functions, behind `from hotloop import name` (which may load a
module lazily), and as strings for importlib, alone or in tables such as `hotloop._LAZY` and
`hotloop.cli.main.VERBS`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import hotloop

PACKAGE = Path(hotloop.__file__).parent

# part -> parts of ours it may import (itself always)
MAY_IMPORT = {
    "_util": set(),
    "machine": {"_util"},
    "capture": {"_util"},
    "measure": {"_util", "machine", "capture"},
    "instrument": {"_util", "capture", "measure"},
    "analysis": {"_util", "capture"},
    "lab": {"_util", "machine", "capture"},
    "report": {"_util", "capture", "analysis"},
    "rl": {"_util", "machine"},  # and `profile` and `progress` from the front door
    "boost": {"_util", "instrument", "rl"},  # and `profile` and `progress` from the front door
    "tuning": {"_util", "machine", "capture", "analysis"},
    "testing": {"_util", "capture", "measure"},
    "workflows": {
        *("_util", "machine", "capture", "measure", "instrument"),
        *("analysis", "report", "lab", "boost", "tuning", "rl"),
    },
    "cli": {"_util", "workflows", "report"},
}
# Files at the top of the package: the front door and the two ways to run us as a program.
TOP = {
    "__init__": {"_util", "measure", "capture", "instrument", "boost", "workflows"},
    "__main__": {"cli"},
    "analyzer": {"_util", "workflows", "report"},
}
EXCEPTIONS = {
    # The first code of every process that we prepare: it starts whatever the environment asks for.
    ("hotloop.instrument.startup.sitecustomize", "hotloop.boost.bootstrap"),
    # A process of its own that runs the command line in forked children; it loads the verb beforehand.
    ("hotloop.workflows.probe_host", "hotloop.cli.train"),
    ("hotloop.workflows.turn_host", "hotloop.cli.train"),
}


# -- finding imports -----------------------------------------------------------------------------


class Import(NamedTuple):
    """One module of ours that another one may load."""

    module: str
    line: int
    types_only: bool = False  # under `if TYPE_CHECKING`


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        words = ("hotloop", *file.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(words).removesuffix(".__init__")] = file
    return found


@cache
def lazy_names() -> dict[str, str]:
    """Names of the front door that load a module on first use, and that module."""
    return dict(hotloop._LAZY)


@cache
def imports_in(source: str, module: str = "") -> set[Import]:
    """What the source code of `module` imports from our package, wherever and however."""
    tree = ast.parse(source)
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    ignored = _docstrings_and_programs(tree)
    found = set()
    for node in ast.walk(tree):
        if id(node) not in ignored:
            for name in _imported_by(node):
                if name != module:
                    found.add(Import(name, getattr(node, "lineno", 0), id(node) in types_only))
    return found


def _docstrings_and_programs(tree: ast.Module) -> set[int]:
    """Strings that are no imports: docstrings, and what follows "-m" in the command of a new process."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
        elif isinstance(node, (ast.List, ast.Tuple)):
            for flag, program in zip(node.elts, node.elts[1:], strict=False):
                if isinstance(flag, ast.Constant) and flag.value == "-m":
                    found.add(id(program))
    return found


def _imported_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        assert not node.level, f"line {node.lineno}: a relative import"
        for alias in node.names if (node.module or "").split(".")[0] == "hotloop" else ():
            yield _resolve(node.module or "", alias.name)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hotloop")
    elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "hotloop":
        yield _resolve("hotloop", node.attr)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.partition(":")[0]  # "module:function"
        if name in modules() and name != "hotloop":
            yield name
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        package, dot, rest = str(node.values[0].value).rpartition(".")  # f"hotloop.rl.workloads.{name}"
        if dot and not rest and package in modules():
            yield from (name for name in modules() if name.rpartition(".")[0] == package)


def _resolve(module: str, name: str) -> str:
    """The module that `from module import name` loads."""
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    return lazy_names().get(name, module) if module == "hotloop" else module


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import hotloop.lab.lanes", "hotloop.lab.lanes"),
        ("from hotloop.lab import lanes", "hotloop.lab.lanes"),
        ("from hotloop.lab.lanes import Cores", "hotloop.lab.lanes"),
        ("def f():\n    from hotloop.lab import lanes", "hotloop.lab.lanes"),
        ("from hotloop import profile", "hotloop"),
        ("from hotloop import start", "hotloop.workflows.record"),
        ("import hotloop\nhotloop.collect()", "hotloop.workflows.collect"),
        ("import importlib\nimportlib.import_module('hotloop.lab.lanes')", "hotloop.lab.lanes"),
        ("TABLE = {'x': ('hotloop.lab.lanes', 'help')}", "hotloop.lab.lanes"),
        ("TABLE = {'x': 'hotloop.lab.lanes:function'}", "hotloop.lab.lanes"),
        ("importlib.import_module(f'hotloop.rl.workloads.{name}')", "hotloop.rl.workloads.snake"),
        ("if TYPE_CHECKING:\n    from hotloop.lab.lanes import Cores", "hotloop.lab.lanes"),
    ],
)
def test_imports_are_found_wherever_they_hide(source: str, imported: str) -> None:
    assert imported in {found.module for found in imports_in(source)}


def test_types_docstrings_and_programs_are_distinguished() -> None:
    (types,) = imports_in("if TYPE_CHECKING:\n    from hotloop.lab.lanes import Cores")
    assert types.types_only
    assert not imports_in('"hotloop.lab.lanes"')
    assert not imports_in("run([sys.executable, '-m', 'hotloop.workflows.probe_host', name])")


# -- the table -----------------------------------------------------------------------------------


def part_of(module: str) -> str:
    """The folder a module lies in; "" for the package itself and the files at its top."""
    words = module.split(".")
    return words[1] if len(words) > 1 and (PACKAGE / words[1]).is_dir() else ""


def test_every_part_keeps_to_the_table() -> None:
    wrong = []
    for module, file in modules().items():
        part = part_of(module)
        allowed = MAY_IMPORT[part] | {part, ""} if part else TOP[file.stem] | {""}
        for found in imports_in(file.read_text(), module):
            if part_of(found.module) not in allowed and (module, found.module) not in EXCEPTIONS:
                wrong.append(f"{file}:{found.line} imports {found.module}")
    assert not wrong, "\n".join(sorted(wrong))


def test_every_folder_is_in_the_table() -> None:
    folders = {f.parent.name for f in PACKAGE.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)


def test_the_table_has_no_cycles() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        free = {part for part, needs in MAY_IMPORT.items() if needs <= done} - done
        assert free, f"a cycle among {set(MAY_IMPORT) - done}"
        done |= free


# -- cycles --------------------------------------------------------------------------------------


def loaded_by(module: str) -> set[str]:
    """What a module loads, at import or later. The front door's lazy names are loaded by its users."""
    found = imports_in(modules()[module].read_text(), module)
    lazy = set(lazy_names().values()) if module == "hotloop" else set()
    return {one.module for one in found if not one.types_only} - lazy


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_modules_have_no_import_cycles() -> None:
    graph = {module: loaded_by(module) for module in modules()}
    lines = [
        f"{module} -> {', '.join(sorted(graph[module] & cycle))}"
        for cycle in cycles(graph)
        for module in sorted(cycle)
    ]
    assert not lines, "import cycles:\n" + "\n".join(lines)


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert cycles(graph) == [{"a", "b", "c"}]


# -- what parts may not do -----------------------------------------------------------------------


def test_only_the_command_line_imports_tyro() -> None:
    for module, file in modules().items():
        if part_of(module) != "cli" and module != "hotloop.analyzer":
            assert "import tyro" not in file.read_text(), f"{module} imports tyro"


def test_analysis_opens_no_files_and_reads_no_clock() -> None:
    forbidden = {"time", "os", "subprocess", "matplotlib", "plotly", "torch", "open"}
    for file in (PACKAGE / "analysis").rglob("*.py"):
        tree = ast.parse(file.read_text())
        called = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        used = {function.id for function in called if isinstance(function, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module.split(".")[0])
        assert not used & forbidden, f"{file.name} uses {used & forbidden}"
