"""Places in code as a reader wants them: `agents/dqn.py:38` instead of a path from the root."""

from __future__ import annotations

import dataclasses
import itertools
import shlex

from hotloop.analysis.findings import Findings

INSTALLED = ("/site-packages/", "/dist-packages/")


def relative(site: str, folder: str) -> str:
    """A file or `file:line` from the project's folder, or from the package if it is an installed one."""
    inside = folder.rstrip("/") + "/"
    if folder and site.startswith(inside):
        return site[len(inside) :]
    for mark in INSTALLED:
        _, found, rest = site.rpartition(mark)
        if found:
            return rest
    return site


def with_relative_paths(findings: Findings) -> Findings:
    """The same findings, with every place in code as `relative` gives it."""
    folder = findings.working_folder

    def short(site: str) -> str:
        return relative(site, folder)

    return dataclasses.replace(
        findings,
        recommendations=tuple(
            dataclasses.replace(r, site=short(r.site), how_to_change=_without(folder, r.how_to_change))
            for r in findings.recommendations
        ),
        bottlenecks=tuple(dataclasses.replace(b, site=short(b.site)) for b in findings.bottlenecks),
        regions=tuple(dataclasses.replace(r, site=short(r.site)) for r in findings.regions),
        hot_lines=tuple(
            dataclasses.replace(line, site=short(line.site), callers=tuple(map(short, line.callers)))
            for line in findings.hot_lines
        ),
        source=tuple(dataclasses.replace(one, file=short(one.file)) for one in findings.source),
    )


def _without(folder: str, text: str) -> str:
    """Prose without the project's folder in front of files in it."""
    return text.replace(folder.rstrip("/") + "/", "") if folder.strip("/") else text


def script_name(command: tuple[str, ...]) -> str:
    """What was run, as short as a title: `train.py`, `python -m pkg.train` as `pkg.train`; "" if unknown.

    Our own verbs keep what they train: `hotloop train petri`.
    """
    words = list(command)
    if words and words[0].rpartition("/")[2].startswith("python") and len(words) > 1 and words[1][0:1] != "-":
        words = words[1:]  # a program without extension that Python runs
    if words and words[0].rpartition("/")[2] == "hotloop":
        return " ".join(["hotloop", *itertools.takewhile(lambda word: not word.startswith("-"), words[1:])])
    for number, word in enumerate(words):
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return words[0].rpartition("/")[2] if words else ""


def short_command(command: tuple[str, ...]) -> str:
    """The command, with the interpreter's name instead of its path."""
    first, *rest = command
    name = first.rpartition("/")[2]
    return shlex.join([name if name.startswith("python") else first, *rest])
