"""Checks out git revisions of the project, each in its own temporary worktree."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Variant
from hotloop.lab.run_plan import Workplace
from hotloop.workflows.experiments import plain_environment, workplaces_here


@contextlib.contextmanager
def checked_out(variants: Sequence[Variant]) -> Iterator[dict[str, Workplace]]:
    """A workplace for each variant, by name: a worktree of its revision, or the current folder.

    In a worktree, a variant runs in the same sub-folder of the project that we are in. Python looks there,
    and in `src` of the worktree, before it finds an installed copy.
    """
    places = workplaces_here(variants)
    revisions = dict.fromkeys(v.revision for v in variants if v.revision)
    if not revisions:
        yield places
        return
    root = Path(_git("rev-parse", "--show-toplevel"))
    inside = Path.cwd().resolve().relative_to(root.resolve())
    home = Path(tempfile.mkdtemp(prefix="hotloop-worktrees-"))
    trees: dict[str, Path] = {}
    try:
        for number, revision in enumerate(revisions):
            _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", missing=revision)
            tree = home / str(number)
            _git("worktree", "add", "--detach", str(tree), revision)
            trees[revision] = tree
        for variant in variants:
            if variant.revision:
                tree = trees[variant.revision]
                environment = plain_environment(_python_path(tree, inside))
                places[variant.name] = Workplace(tree / inside, environment)
        yield places
    finally:
        for tree in trees.values():
            with contextlib.suppress(HotloopError):
                _git("worktree", "remove", "--force", str(tree), folder=root)
        shutil.rmtree(home, ignore_errors=True)
        with contextlib.suppress(HotloopError):
            _git("worktree", "prune", folder=root)


def _python_path(tree: Path, inside: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(p for p in (tree / inside, tree / "src") if p.is_dir()))


def _git(*words: str, folder: Path | None = None, missing: str = "") -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise HotloopError("Comparing revisions needs git, which is not installed; install it.") from None
    if done.returncode:
        if missing:
            raise HotloopError(f"Revision {missing!r} does not exist in this project; see git log.")
        why = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise HotloopError(f"git {words[0]} failed: {why[0].removesuffix('.')}.")
    return done.stdout.strip()
