"""A summary of a run on many nodes as text: roles, how their members differ, regions that take the time."""

from __future__ import annotations

from hotloop._util.units import count, duration, percent, short_duration
from hotloop.capture.model import Node
from hotloop.capture.summary import RoleSummary, Summary
from hotloop.report.safe_text import shown

MOST_REGIONS = 5


def summary_text(summary: Summary, width: int) -> str:
    """The whole summary, at most `width` columns wide."""
    length_ns = summary.end_real_ns - summary.begin_real_ns
    progress = summary.progress
    lines = [
        f"{count(summary.nodes)} nodes, {count(summary.processes)} processes, {duration(length_ns)}",
        f"{count(progress.env_steps)} env steps, {count(progress.updates)} updates",
        "",
        f"{'role':<22}{'members':>9}{'on a core':>11}{'least':>9}{'median':>9}{'most':>9}{'waiting':>9}",
    ]
    roles = sorted(summary.roles.items(), key=lambda item: -item[1].wall_ns)
    for name, role in roles:
        running, waiting = role.running, role.waiting
        lines.append(
            f"{shown(name)[:22]:<22} {role.members:>8,} {percent(running.mean):>10} "
            f"{percent(max(running.least[0], 0) if role.members else None):>8} {percent(running.median):>8} "
            f"{percent(max(running.most[0], 0)):>8} {percent(waiting.mean):>8}"
        )
    for name, role in roles:
        lines += ["", *_role_text(name, role)]
    return "\n".join(line[:width].rstrip() for line in lines)


def _role_text(name: str, role: RoleSummary) -> list[str]:
    lines = [f"{shown(name)}: where the time of its {role.members:,} members goes"]
    if role.members > 2:
        lines.append(f"  busiest: {shown(role.running.most[1])}, {percent(role.running.most[0])} on a core")
    nodes: list[Node] = []
    todo = list(role.tree.children)
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo += node.children
    nodes.sort(key=lambda node: (-node.own_ns, node.name))
    for node in nodes[:MOST_REGIONS]:
        share = percent(node.own_ns / role.wall_ns if role.wall_ns else None)
        mean = short_duration(node.mean_ns)
        lines.append(f"  {shown(node.name)[:34]:<34} {share:>8} {count(node.calls):>16} calls {mean:>9} each")
    return lines
