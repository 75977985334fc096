"""Who may import whom: the table, and the check that the code keeps to it."""

from __future__ import annotations

import ast
from pathlib import Path

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
    "rl": {"_util", "machine"},
    "tuning": {"_util", "machine", "capture", "analysis"},
    "testing": {"_util", "capture", "measure"},
    "workflows": {
        *("_util", "machine", "capture", "measure", "instrument"),
        *("analysis", "report", "lab", "tuning", "rl"),
    },
    "cli": {"_util", "workflows", "report"},
}
# Files at the top of the package: the front door and the two ways to run us as a program.
TOP = {
    "__init__": {"measure", "capture", "instrument", "workflows"},
    "__main__": {"cli"},
    "analyzer": {"_util", "workflows", "report"},
}


def imports_of(file: Path) -> set[str]:
    """The parts of hotloop a file imports, wherever in the file; "" for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.module != "hotloop":
                names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "hotloop":
                found.add(words[1] if len(words) > 1 and (PACKAGE / words[1]).is_dir() else "")
    return found


def test_every_part_keeps_to_the_table() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        where = file.relative_to(PACKAGE)
        part = where.parts[0] if len(where.parts) > 1 else None
        allowed = MAY_IMPORT[part] | {part, ""} if part else TOP[where.stem] | {""}
        wrong += [f"{where} imports {name}" for name in imports_of(file) - allowed]
    assert not wrong, "\n".join(wrong)


def test_every_folder_is_in_the_table() -> None:
    folders = {f.parent.name for f in PACKAGE.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)


def test_the_table_has_no_cycles() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        free = {part for part, needs in MAY_IMPORT.items() if needs <= done} - done
        assert free, f"a cycle among {set(MAY_IMPORT) - done}"
        done |= free


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
