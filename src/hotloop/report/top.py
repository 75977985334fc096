"""`hotloop top`: the status of a running job as a live view, as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.live import UNATTRIBUTED, LiveProcess, LiveStatus, Stuck
from hotloop.report.safe_text import shown
from hotloop.report.to_json import json_object

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHARES_ON_A_LINE = 4
_WARNINGS = 3  # shown at most
_NODES = 6  # named at most
_BAR = 20  # columns of the longest bar


def top_json(status: LiveStatus) -> dict[str, Any]:
    """The status for `--json`."""
    return json_object("top", status)


def top_lines(status: LiveStatus) -> str:
    """One line for the job, and one for each stuck thread."""
    shares = [
        f"{shown(r.name, 28)} {percent(r.share)}" for r in status.regions[:_SHARES_ON_A_LINE] if r.own_ns
    ]
    parts = [duration(status.run_ns), *_rates(status), *shares]
    nodes = [f"  {_nodes(status)}"] if status.nodes else []
    return "\n".join(["  ".join(parts), *nodes, *(f"  {line}" for line in notices(status))])


def ending(status: LiveStatus) -> str:
    """The last line, once all processes have ended."""
    died = [p for p in status.processes if p.state == "died"]
    how = f" ({shown(status.exit_status, 60)})" if status.exit_status else ""
    text = f"All processes of the capture have ended{how}: {duration(status.run_ns)}, {_work(status)}."
    if died:
        text += f" {len(died)} of {len(status.processes)} died before closing their recording: {_who(died)}."
    return text


def top_view(status: LiveStatus, title: str, height: int = 40) -> RenderableType:
    """The status for a terminal with `height` lines: job, stuck threads, regions, processes."""
    from rich.console import Group
    from rich.text import Text

    told = notices(status)
    left = max(height - 10 - len(told), 6)
    processes = min(len(status.processes), max(left // 2, 3))
    regions = max(left - processes, 3)
    span = "since the start" if status.since_start else f"over the last {duration(status.span_ns)}"
    return Group(
        Text(f"hotloop top  {shown(title, 50)}", style="bold"),
        Text(f"{duration(status.run_ns)} so far: {_work(status)}"),
        Text(f"{span}: " + ("   ".join(_rates(status)) or "no progress reported")),
        *([Text(_nodes(status))] if status.nodes else []),
        *(Text(line, style="bold red") for line in told),
        Text(""),
        _region_table(status, regions),
        Text(""),
        _process_table(status, processes),
    )


def show_live(updates: Iterable[LiveStatus], title: str) -> None:
    """Redraw the view in place at every update; the last one stays on the screen."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    last: LiveStatus | None = None
    with Live(console=console, auto_refresh=False) as screen:
        for last in updates:
            screen.update(top_view(last, title, console.height), refresh=True)
    if last is not None and last.all_ended:
        console.print(ending(last), markup=False, highlight=False)


def _rates(status: LiveStatus) -> list[str]:
    rates = ((status.env_steps_per_s, "env steps/s"), (status.updates_per_s, "updates/s"))
    means = ((status.mean_return, "return"), (status.mean_loss, "loss"))
    return [
        *(f"{_number(value)} {unit}" for value, unit in rates if value is not None),
        *(f"{name} {_number(value)}" for value, name in means if value is not None),
    ]


def _nodes(status: LiveStatus) -> str:
    """How many processes each node runs, and how old that is."""
    found = []
    for node in status.nodes[:_NODES]:
        how = f"{node.running} running"
        if node.state != "recorded":
            how = node.state
        elif node.age_ns is None:
            how = "nothing came yet"
        elif node.age_ns:
            how += f", {node.age_ns / 1e9:.1f} s ago"
        found.append(f"{shown(node.name, 30)} {how}")
    more = f"; and {len(status.nodes) - _NODES} more" if len(status.nodes) > _NODES else ""
    return f"{len(status.nodes)} nodes: {'; '.join(found)}{more}"


def _work(status: LiveStatus) -> str:
    done = ((status.env_steps, "env steps"), (status.updates, "updates"), (status.episodes, "episodes"))
    parts = [f"{count(number)} {unit}" for number, unit in done if number]
    return ", ".join(parts) or "no progress reported"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def notices(status: LiveStatus) -> list[str]:
    """What is wrong with the job: stuck threads, silent or dead processes, damaged parts."""
    silent = [p for p in status.processes if p.state == "silent"]
    died = [p for p in status.processes if p.state == "died"]
    lines = [_stuck_words(stuck) for stuck in status.stuck]
    if silent:
        lines.append(f"no heartbeat (stopped, or starved of CPU): {_who(silent)}")
    if died and not status.all_ended:
        lines.append(f"died before closing the recording: {_who(died)}")
    if not status.processes:
        lines.append("no process has recorded anything yet")
    doubtful_first = sorted(status.warnings, key=lambda warning: not warning.startswith("damaged"))
    return lines + [shown(warning, 200) for warning in doubtful_first[:_WARNINGS]]


def _stuck_words(stuck: Stuck) -> str:
    thread = "" if stuck.thread == "MainThread" else f", thread {shown(stuck.thread, 24)}"
    who = f"{shown(stuck.process, 24)} (pid {stuck.pid}){thread}"
    return f"stuck in {shown(stuck.region, 40)} for {duration(round(stuck.for_ns / 1e9) * 10**9)}, {who}"


def _who(processes: list[LiveProcess]) -> str:
    names = ", ".join(f"{shown(p.label, 24)} (pid {p.pid})" for p in processes[:4])
    return names + (f" and {len(processes) - 4} more" if len(processes) > 4 else "")


def _region_table(status: LiveStatus, rows: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("region", max_width=36)
    for heading in ("share", "calls/s"):
        table.add_column(heading, justify="right")
    table.add_column("share of the time of all threads")
    largest = max((r.share for r in status.regions), default=0.0) or 1.0
    for region in status.regions[:rows]:
        style = "dim" if region.name == UNATTRIBUTED else ""
        calls = "" if region.name == UNATTRIBUTED else _number(region.calls_per_s)
        bar = "█" * max(round(_BAR * region.share / largest), 1 if region.own_ns else 0)
        bar_text = Text(bar, style=style or "cyan")
        table.add_row(Text(shown(region.name, 36), style=style), percent(region.share), calls, bar_text)
    return table


def _process_table(status: LiveStatus, rows: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("process", max_width=24)
    for heading in ("pid", "steps/s", "updates/s", "memory"):
        table.add_column(heading, justify="right")
    table.add_column("most time in", max_width=28)
    table.add_column("now in", max_width=24)
    running = sorted(status.processes, key=lambda p: p.state in ("ended", "died"))
    for p in running[:rows]:
        busiest = "-" if p.busiest is None else f"{shown(p.busiest, 20)} {percent(p.busiest_share)}"
        now = p.state if p.state != "running" else shown(p.inside, 24) if p.inside else "-"
        table.add_row(
            Text(shown(p.label, 24)),
            str(p.pid),
            _number(p.env_steps_per_s),
            _number(p.updates_per_s),
            size(p.rss_bytes),
            Text(busiest),
            Text(now),
        )
    if len(running) > rows:
        table.add_row(Text(f"... {len(running) - rows} more"), "", "", "", "", "", "")
    return table
