"""ARCHITECTURE.md names files and parts: each of them must exist, and no part may be missing."""

from __future__ import annotations

import re
from pathlib import Path

import hotloop

PACKAGE = Path(hotloop.__file__).parent
TEXT = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()


def test_every_file_it_names_exists() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|\.c|\.h|/))`", TEXT)
    in_each_env = {"rules.py", "kernels.py", "env.py", "render.py"}
    in_train = {"runs.py", "make_envs.py", "fused/"}
    relative = {"advice/": "analysis/advice"} | {name: f"rl/train/{name}" for name in in_train}
    missing = [
        name
        for name in named
        if name not in in_each_env and not (PACKAGE / relative.get(name, name)).exists()
    ]
    assert len(named) > 30
    assert not missing


def test_every_part_is_in_its_table() -> None:
    rows = set(re.findall(r"^\| `([\w/]+)` \|", TEXT, flags=re.MULTILINE))
    parts = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} - {"rl"}
    parts |= {f"rl/{folder.parent.name}" for folder in (PACKAGE / "rl").glob("*/__init__.py")}
    assert rows == parts
