"""Checks out git revisions of the project, each in its own temporary worktree."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Variant
from hotloop.lab.run_plan import Workplace
from hotloop.workflows.experiments import plain_environment


@contextlib.contextmanager
def checked_out(variants: Sequence[Variant], folder: Path | None = None) -> Iterator[dict[str, Workplace]]:
    """A workplace for each variant, by name: a worktree of its revision, or `folder` (None: the current one).

    In a worktree, a variant runs in the same sub-folder of the project as `folder`. Python looks there, and
    in `src` of the worktree, before it finds an installed copy.
    """
    here = (folder or Path.cwd()).resolve()
    places = {variant.name: Workplace(here, plain_environment()) for variant in variants}
    revisions = dict.fromkeys(v.revision for v in variants if v.revision)
    if not revisions:
        yield places
        return
    root = project_root(here)
    inside = here.relative_to(root)
    home = Path(tempfile.mkdtemp(prefix="hotloop-worktrees-"))
    trees: dict[str, Path] = {}
    try:
        for number, revision in enumerate(revisions):
            _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", folder=here, missing=revision)
            tree = home / str(number)
            _git("worktree", "add", "--detach", str(tree), revision, folder=here)
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


def project_root(folder: Path) -> Path:
    """The top folder of the git project that `folder` is in."""
    return Path(_git("rev-parse", "--show-toplevel", folder=folder)).resolve()


def revision_before(folder: Path, recorded: str) -> str:
    """The revision before the change: HEAD, or `recorded` if the change has been committed since.

    Raises HotloopError if nothing has changed.
    """
    if _git("status", "--porcelain", "--untracked-files=no", folder=folder):
        return "HEAD"
    if recorded and _git("rev-parse", "HEAD", folder=folder) != recorded:
        return recorded
    raise HotloopError(
        f"No file of the project in {folder} has changed since HEAD, so there is nothing to compare; "
        "make the change first, then run this command again."
    )


@dataclass(frozen=True)
class Commit:
    """A commit of the project."""

    revision: str
    subject: str

    @property
    def short(self) -> str:
        return self.revision[:10]


def commits_between(good: str, bad: str, folder: Path) -> tuple[Commit, ...]:
    """The commit `good` and those after it up to `bad`, oldest first; only first parents of merges count."""
    ends = [
        _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", folder=folder, missing=name)
        for name in (good, bad)
    ]
    words = ("log", "--first-parent", "--reverse", "--format=%H %s")
    lines = _git(*words, f"{ends[0]}..{ends[1]}", folder=folder).splitlines()
    found = [Commit(revision, subject) for revision, _, subject in (line.partition(" ") for line in lines)]
    first = found and _git("rev-parse", f"{found[0].revision}^", folder=folder, missing=f"{good}")
    if first != ends[0]:
        raise HotloopError(
            f"{good} is not an earlier commit on the way to {bad} (first parents only); "
            f"choose one from: git log --first-parent --oneline {bad}"
        )
    start = _git("log", "-1", "--format=%s", ends[0], folder=folder)
    return (Commit(ends[0], start), *found)


def is_in_revision(file: Path, revision: str, root: Path) -> bool:
    """Whether a file inside the project is part of a revision."""
    inside = file.resolve().relative_to(root)
    try:
        _git("cat-file", "-e", f"{revision}:{inside.as_posix()}", folder=root)
    except HotloopError:
        return False
    return True


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
