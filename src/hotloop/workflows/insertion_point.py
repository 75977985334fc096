"""Finds where in a user's script a line of code goes: after the imports, before training, or into a call."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.instrument.trial_patch import Place

MODEL_CALLS = (
    *("Adam", "AdamW", "PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"),
    *("TRPO", "RecurrentPPO", "MaskablePPO", "QRDQN", "TQC", "CrossQ"),
)


@dataclass(frozen=True, slots=True)
class InsertionPoint:
    """A line of code and where it goes."""

    text: str  # the line, with the imports that the script lacks
    at: str | None  # `train.py:12`; None: not found
    instruction: str  # `add this line at train.py:12`


def script_of(command: Sequence[str]) -> Path | None:
    """The Python file that a command runs: its first word ending in .py, or the module after -m."""
    for at, word in enumerate(command):
        if word == "-m" and at + 1 < len(command):
            return _file_of_module(command[at + 1])
        if word.endswith(".py") and Path(word).is_file():
            return Path(word)
    return None


def _file_of_module(name: str) -> Path | None:
    here = Path(*name.split("."))
    for file in (here.with_suffix(".py"), here / "__main__.py"):
        if file.is_file():
            return file
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def find_insertion_point(
    script: Path | None, line: str, needs: Sequence[str], place: Place
) -> InsertionPoint:
    """Where `line` goes in the script, with the imports it `needs`."""
    try:
        tree = ast.parse(script.read_text(encoding="utf-8")) if script is not None else None
    except (OSError, SyntaxError, ValueError):
        tree = None
    if place in ("imports", "training"):
        missing = [need for need in needs if tree is None or not _imports(tree, need)]
        text = "; ".join([*missing, line]) if not line.startswith("for ") else "\n".join([*missing, line])
        number = None
        if tree is not None:
            number = after_imports(tree) if place == "imports" else before_training(tree)
        if number is None:
            where = "after the imports of the script" if place == "imports" else "where training starts"
            return InsertionPoint(text, None, f"add this {where}")
        at = f"{script}:{number}"
        return InsertionPoint(text, at, f"add this line {'at' if place == 'imports' else 'before'} {at}")
    names = ("learn",) if place == "learn" else MODEL_CALLS
    call = _call(tree, names) if tree is not None else None
    if call is None or script is None:
        where = "training starts" if place == "learn" else "the model or optimizer is created"
        return InsertionPoint(line, None, f"add this where {where}")
    at = f"{script}:{call.lineno}"
    what = "argument to the call" if not line.startswith("model =") else "line after the call"
    return InsertionPoint(line, at, f"add this {what} at {at}")


def after_imports(tree: ast.Module) -> int:
    """Number of the line after the last top-level import, or after the docstring."""
    last = 0
    for number, node in enumerate(tree.body):
        text = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        guarded = isinstance(node, (ast.If, ast.Try)) and _only_imports(node)
        if text or guarded or isinstance(node, (ast.Import, ast.ImportFrom)):
            last = node.end_lineno or node.lineno
    return last + 1


def before_training(tree: ast.Module) -> int | None:
    """Line of the call of `learn`, or of the outermost loop that steps an env or an optimizer."""
    for node in ast.walk(tree):  # outer nodes first
        if isinstance(node, (ast.For, ast.While)) and _call(node, ("step",)) is not None:
            return node.lineno
        if isinstance(node, (ast.Expr, ast.Assign)) and _call(node, ("learn",)) is not None:
            return node.lineno
    return None


def _only_imports(node: ast.If | ast.Try) -> bool:
    return all(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in node.body)


def _imports(tree: ast.Module, statement: str) -> bool:
    """Whether the script has this import, under the same name."""
    wanted = ast.dump(ast.parse(statement).body[0])
    for node in tree.body:
        if isinstance(node, ast.Import):
            if any(ast.dump(ast.Import(names=[alias])) == wanted for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                one = ast.ImportFrom(module=node.module, names=[alias], level=node.level)
                if ast.dump(one) == wanted:
                    return True
    return False


def _call(tree: ast.AST, names: Sequence[str]) -> ast.Call | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in names:
                return node
    return None
