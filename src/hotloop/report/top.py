"""`hotloop top`: one look at a running job, as a live view, as plain lines, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.live import UNATTRIBUTED, Live, LiveProcess, Stuck
from hotloop.report.safe_text import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
_SHARES_ON_A_LINE = 4
_BAR = 20  # columns of the longest bar


def top_json(live: Live) -> dict[str, Any]:
    """The look as plain values."""
    return {"schema_version": SCHEMA_VERSION, "kind": "hotloop top"} | asdict(live)


def top_lines(live: Live) -> str:
    """One line for the job, and one for each thread that is stuck."""
    shares = [f"{shown(r.name, 28)} {percent(r.share)}" for r in live.regions[:_SHARES_ON_A_LINE] if r.own_ns]
    parts = [duration(live.run_ns), *_rates(live), *shares]
    return "\n".join(["  ".join(parts), *(f"  {line}" for line in _notices(live))])


def ending(live: Live) -> str:
    """The word with which the view ends."""
    died = [p for p in live.processes if p.state == "died"]
    how = f" ({shown(live.exit_status, 60)})" if live.exit_status else ""
    text = f"All processes of the capture have ended{how}: {duration(live.run_ns)}, {_work(live)}."
    if died:
        text += f" {len(died)} of {len(live.processes)} died without closing their recording: {_who(died)}."
    return text


def top_view(live: Live, title: str, height: int = 40) -> RenderableType:
    """The look for a terminal of so many lines: job, regions, processes, stuck threads."""
    from rich.console import Group
    from rich.text import Text

    notices = _notices(live)
    left = max(height - 10 - len(notices), 6)
    processes = min(len(live.processes), max(left // 2, 3))
    regions = max(left - processes, 3)
    span = "since its start" if live.since_start else f"over the last {duration(live.span_ns)}"
    return Group(
        Text(f"hotloop top  {shown(title, 50)}", style="bold"),
        Text(f"{duration(live.run_ns)} so far: {_work(live)}"),
        Text(f"{span}: " + ("   ".join(_rates(live)) or "no progress reported")),
        *(Text(line, style="bold red") for line in notices),
        Text(""),
        _region_table(live, regions),
        Text(""),
        _process_table(live, processes),
    )


def show(looks: Iterable[Live], title: str) -> None:
    """Redraw the view in place at every look; the last one stays on the screen."""
    from rich.console import Console
    from rich.live import Live as Screen

    console = Console()
    last: Live | None = None
    with Screen(console=console, auto_refresh=False) as screen:
        for last in looks:
            screen.update(top_view(last, title, console.height), refresh=True)
    if last is not None and last.all_ended:
        console.print(ending(last), markup=False, highlight=False)


def _rates(live: Live) -> list[str]:
    rates = ((live.env_steps_per_s, "env steps/s"), (live.updates_per_s, "updates/s"))
    means = ((live.mean_return, "return"), (live.mean_loss, "loss"))
    return [
        *(f"{_number(value)} {unit}" for value, unit in rates if value is not None),
        *(f"{name} {_number(value)}" for value, name in means if value is not None),
    ]


def _work(live: Live) -> str:
    done = ((live.env_steps, "env steps"), (live.updates, "updates"), (live.episodes, "episodes"))
    parts = [f"{count(number)} {unit}" for number, unit in done if number]
    return ", ".join(parts) or "no progress reported"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _notices(live: Live) -> list[str]:
    silent = [p for p in live.processes if p.state == "silent"]
    died = [p for p in live.processes if p.state == "died"]
    lines = [_stuck_words(stuck) for stuck in live.stuck]
    if silent:
        lines.append(f"no sign of life (stopped, or starved of CPU): {_who(silent)}")
    if died and not live.all_ended:
        lines.append(f"died without closing the recording: {_who(died)}")
    if not live.processes:
        lines.append("no process has recorded anything yet")
    return lines


def _stuck_words(stuck: Stuck) -> str:
    thread = "" if stuck.thread == "MainThread" else f", thread {shown(stuck.thread, 24)}"
    who = f"{shown(stuck.process, 24)} (pid {stuck.pid}){thread}"
    return f"stuck in {shown(stuck.region, 40)} for {duration(round(stuck.for_ns / 1e9) * 10**9)}, {who}"


def _who(processes: list[LiveProcess]) -> str:
    names = ", ".join(f"{shown(p.label, 24)} (pid {p.pid})" for p in processes[:4])
    return names + (f" and {len(processes) - 4} more" if len(processes) > 4 else "")


def _region_table(live: Live, rows: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("region", max_width=36)
    for heading in ("share", "calls/s"):
        table.add_column(heading, justify="right")
    table.add_column("of the time of all threads")
    largest = max((r.share for r in live.regions), default=0.0) or 1.0
    for region in live.regions[:rows]:
        style = "dim" if region.name == UNATTRIBUTED else ""
        calls = "" if region.name == UNATTRIBUTED else _number(region.calls_per_s)
        bar = "█" * max(round(_BAR * region.share / largest), 1 if region.own_ns else 0)
        bar_text = Text(bar, style=style or "cyan")
        table.add_row(Text(shown(region.name, 36), style=style), percent(region.share), calls, bar_text)
    return table


def _process_table(live: Live, rows: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("process", max_width=24)
    for heading in ("pid", "steps/s", "updates/s", "memory"):
        table.add_column(heading, justify="right")
    table.add_column("most time in", max_width=28)
    table.add_column("now in", max_width=24)
    running = sorted(live.processes, key=lambda p: p.state in ("ended", "died"))
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
