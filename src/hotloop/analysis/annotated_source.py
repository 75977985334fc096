"""The user's files with the time that each line took, for the lines that matter and their neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.analysis.findings import AnnotatedFile, AnnotatedLine
from hotloop.analysis.line_samples import LineSamples, line_of

LEAST_SHARE = 0.001  # of training; lines below are kept as neighbours only
CONTEXT = 2  # lines before and after a line that counts
MOST_FILES = 8
MOST_LINES = 300  # of a file


def annotated_source(lines: LineSamples, env_steps: int, updates: int) -> tuple[AnnotatedFile, ...]:
    """Files of the user by the time their lines took, library calls included; most time first.

    Only files whose source was kept. A line of another function of the user has its own time.
    """
    by_file: dict[str, dict[int, list[int]]] = {}
    for number, path in enumerate(lines.paths):
        frame = line_of(path)
        if frame is not None:
            by_file.setdefault(frame.file, {}).setdefault(frame.line, []).append(number)
    per, unit = (env_steps, "env_step") if env_steps else (updates, "update")
    found = []
    for file, paths in by_file.items():
        texts, changed = _texts(lines, file)
        shares = {line: lines.share_of(numbers) for line, numbers in paths.items()}
        kept = _with_neighbours((line for line, share in shares.items() if share >= LEAST_SHARE), texts)
        if not kept:
            continue
        rows = []
        for line in kept:
            share = shares.get(line, 0.0)
            each = share * lines.thread.wall_ns / per if per and share else None
            rows.append(AnnotatedLine(line, texts[line], share, each))
        found.append(AnnotatedFile(file, sum(shares.values()), changed, unit if per else "", _most(rows)))
    found.sort(key=lambda one: (-one.share, one.file))
    return tuple(found[:MOST_FILES])


def _texts(lines: LineSamples, file: str) -> tuple[dict[int, str], bool]:
    """Lines of the file by number, as far as they were kept; whether it was changed after the start."""
    texts: dict[int, str] = {}
    changed = False
    for source in lines.sources:
        if source.file == file:
            changed |= source.changed
            texts |= dict(enumerate(source.text.splitlines(), source.first_line))
    return texts, changed


def _with_neighbours(wanted: Iterable[int], texts: dict[int, str]) -> list[int]:
    near = {line + step for line in wanted for step in range(-CONTEXT, CONTEXT + 1) if line in texts}
    return sorted(line for line in near if line in texts)


def _most(rows: list[AnnotatedLine]) -> tuple[AnnotatedLine, ...]:
    """The rows with most time and their neighbours, if there are too many."""
    if len(rows) <= MOST_LINES:
        return tuple(rows)
    largest = sorted(rows, key=lambda row: -row.share)[: MOST_LINES // (2 * CONTEXT + 1)]
    near = {row.number + step for row in largest for step in range(-CONTEXT, CONTEXT + 1)}
    return tuple(row for row in rows if row.number in near)
