"""The scale check of a series as the runs that `scaling` fits."""

from __future__ import annotations

from hotloop.analysis.scaling import RegionRun, ScaleRun, Scaling, scaling
from hotloop.capture.series import Run, Series


def scale_runs(series: Series) -> list[ScaleRun]:
    """Every finished run of the scale check.

    Where all of them recorded themselves, the time is that of the driving thread without its start-up;
    otherwise that of the whole process.
    """
    runs = [run for run in series.runs if run.scale and run.ok and run.size is not None]
    recorded = all(run.figures.startup_s is not None and any(run.figures.regions_s.values()) for run in runs)
    return [_recorded(run) if recorded else ScaleRun(float(run.size or 0), run.wall_s, {}) for run in runs]


def scaling_of(series: Series) -> Scaling | None:
    """How time grows with size; None when fewer than two sizes have a finished run."""
    runs = scale_runs(series)
    return scaling(runs) if len({run.size for run in runs}) > 1 else None


def _recorded(run: Run) -> ScaleRun:
    own, calls = run.figures.regions_s, run.figures.region_calls
    return ScaleRun(
        size=float(run.size or 0),
        wall_s=sum(own.values()),
        regions={name: RegionRun(calls.get(name, 0), seconds) for name, seconds in own.items()},
        env_steps=run.figures.env_steps,
        startup_s=run.figures.startup_s,
    )
