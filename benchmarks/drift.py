"""How much do runs of the same work differ, depending on how far apart in time they were made?

    python benchmarks/drift.py SERIES "as it is" "control: flood off"

SERIES is the folder of `hotloop lab run`; the named variants must do the same work. Runs are compared within
a block, so the result shows how long a block may take, and what `neighbours` in a plan gains.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

from hotloop._util.errors import CaptureError
from hotloop.analysis.comparison import metric_of, value_s
from hotloop.capture.series import read

DISTANCES_S = (0.0, 6.0, 12.0, 25.0, 50.0, 200.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("series", type=Path)
    parser.add_argument("variants", nargs="+", help="variants that do the same work")
    given = parser.parse_args()
    try:
        series = read(given.series)
    except CaptureError as error:
        parser.error(str(error))
    metric = metric_of(series)
    runs = [run for name in given.variants for run in series.of(name)]
    seen = [(run.started_s, math.log(value_s(run, metric))) for run in runs]
    for near, far in itertools.pairwise(DISTANCES_S):
        squares = [
            (a - b) ** 2
            for (at, a), (then, b) in itertools.combinations(seen, 2)
            if near <= abs(at - then) < far
        ]
        if squares:
            deviation = math.sqrt(sum(squares) / len(squares) / 2)
            print(f"{near:4.0f} to {far:3.0f} s apart  {100 * deviation:5.1f} %  {len(squares):6,} pairs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
