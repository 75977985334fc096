"""`hotloop boost`: runs an unmodified script with compiled learners underneath Stable-Baselines3."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util import strict_json
from hotloop.boost.bootstrap import BACKGROUND, BOOST_VARIABLE, KEEP, REPORT, ModelReport, read_reports
from hotloop.workflows.project_settings import patches_to_keep
from hotloop.workflows.run import PACKAGE, STARTUP, ScriptRun, resolve_command, wait_for


@dataclass(frozen=True)
class BoostedRun:
    """How a boosted script ended, and what was put into its models."""

    ran: ScriptRun
    models: list[ModelReport] | None
    """None if the script wrote no report, because it was killed or never began."""


def run_boosted(
    words: tuple[str, ...], quiet: bool, keep: Path | None = None, background: bool = False
) -> BoostedRun:
    """Run a command boosted; with `quiet` its stdout goes to stderr.

    The file `keep` names patches of `hotloop try` to apply, too. With `background`, models train unboosted
    until their kernels are compiled.
    """
    patches = () if keep is None else patches_to_keep(keep)
    command = resolve_command(words, "boost")
    with tempfile.TemporaryDirectory(prefix="hotloop-boost-") as folder:
        report = Path(folder) / "models.json"
        options = {REPORT: str(report), KEEP: list(patches), BACKGROUND: background}
        environment = boosting_environment(options)
        child = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
        interrupted = wait_for(child)
        models = read_reports(report.read_text(encoding="utf-8")) if report.exists() else None
        return BoostedRun(ScriptRun(Path(folder), tuple(command), child.returncode, interrupted), models)


def boosting_environment(options: dict[str, Any] | None = None) -> dict[str, str]:
    """Environment in which any Python, unmodified, is boosted."""
    before = os.environ.get("PYTHONPATH")
    return dict(os.environ) | {
        BOOST_VARIABLE: strict_json.dumps(options or {}),
        "HOTLOOP_HOME": str(PACKAGE.parent),
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *([before] if before else [])]),
    }
