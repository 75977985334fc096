"""How time and memory of folding, transfer and report grow with the number of nodes, on synthetic recordings.

    python benchmarks/cluster.py                  10, 100 and 1,000 nodes with 64 processes each
    python benchmarks/cluster.py --nodes 10 100 --processes 16

Each node's processes are folded, the summary is written and read back as it would be after the transfer, and
merged into the driver's. CPU times; memory is the peak of Python's allocations while the driver merges.
The exponent is the slope of log(figure) over log(nodes) between the first and the last size.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import tracemalloc
from pathlib import Path

from hotloop.capture.summary import Summary, fold, load_summary, save_summary, span_of
from hotloop.report.summary_text import summary_text
from hotloop.testing.clusters import make_node_processes


def measure(nodes: int, processes: int, folder: Path) -> dict[str, float]:
    span = span_of(make_node_processes(0, 1))
    fold_s = transfer_s = merge_s = 0.0
    sent = 0
    peak = 0
    whole: Summary | None = None
    file = folder / "node.json"
    for node in range(nodes):
        made = list(make_node_processes(node, processes))
        begin = time.process_time()
        summary = fold(made, *span)
        fold_s += time.process_time() - begin
        del made
        begin = time.process_time()
        save_summary(summary, file)
        sent += file.stat().st_size
        arrived = load_summary(file)
        transfer_s += time.process_time() - begin
        traced = node in (0, nodes - 1)  # tracing is slow, and the driver's memory does not shrink in between
        if traced:
            tracemalloc.start()
        begin = time.process_time()
        if whole is None:
            whole = arrived
        else:
            whole.merge(arrived)
        merge_s += 0.0 if traced else time.process_time() - begin
        if traced:
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert whole is not None
    begin = time.process_time()
    summary_text(whole, 80)
    report_s = time.process_time() - begin
    save_summary(whole, file)
    return {
        "nodes": nodes,
        "processes": nodes * processes,
        "fold_s_per_node": fold_s / nodes,
        "transfer_s": transfer_s,
        "bytes_per_node": sent / nodes,
        "merge_s": merge_s,
        "report_s": report_s,
        "whole_bytes": file.stat().st_size,
        "merge_peak_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(nodes, args.processes, Path(folder)) for nodes in args.nodes]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    names = [name for name in rows[0] if name != "nodes"]
    print(f"{'':18}" + "".join(f"{row['nodes']:>12,.0f} nodes" for row in rows) + "    exponent")
    for name in names:
        first, last = rows[0], rows[-1]
        slope = math.log(max(last[name], 1e-9) / max(first[name], 1e-9)) / math.log(
            last["nodes"] / first["nodes"]
        )
        print(f"{name:18}" + "".join(f"{row[name]:18,.4g}" for row in rows) + f"{slope:12.2f}")


if __name__ == "__main__":
    main()
