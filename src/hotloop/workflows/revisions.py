"""Git revisions of the project, each in a worktree of its own that is removed at the end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Variant
from hotloop.workflows.experiments import Places


@contextlib.contextmanager
def checked_out(variants: Sequence[Variant]) -> Iterator[Places]:
    """Worktrees for the revisions that variants name; a variant without one runs where we are.

    A variant runs in the same sub-folder of the project as the one we are in. Python looks there,
    and in `src` of the worktree, before it looks for an installed copy.
    """
    revisions = dict.fromkeys(v.revision for v in variants if v.revision)
    if not revisions:
        yield Places()
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
        yield Places(
            folder_of=lambda v: trees[v.revision] / inside if v.revision else Path.cwd(),
            python_path_of=lambda v: _python_path(trees[v.revision], inside) if v.revision else (),
        )
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
        raise HotloopError("Comparing revisions needs git, which is not installed.") from None
    if done.returncode:
        if missing:
            raise HotloopError(f"There is no revision {missing!r} in this project; see git log.")
        why = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
        raise HotloopError(f"git {words[0]} failed: {why[0]}")
    return done.stdout.strip()
