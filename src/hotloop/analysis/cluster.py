"""Runs on several nodes, in sentences: nodes and their clocks, how members of a role differ, bytes sent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hotloop._util.units import duration, percent, size
from hotloop.analysis.ray_waits import wait_sentences
from hotloop.analysis.system import Member, Role
from hotloop.capture.model import Capture, Node
from hotloop.capture.nodes import node_of
from hotloop.capture.region_names import RAY_TASK

LEAST_SPREAD = 0.05  # of their time, between the busiest and the least busy member of a role
MOST_NODES = 6  # in a sentence
STRAGGLES = 1.25  # times the work of the median member


def describe_cluster(
    capture: Capture, members: Sequence[Member], roles: Sequence[Role], training_ns: int
) -> list[str]:
    """Sentences about a run on Ray or on several computers; [] for any other run."""
    if not capture.nodes:
        return []
    found = [_nodes(capture)] if len(capture.nodes) > 1 else []
    found += [text for role in roles if role.works and (text := _spread(capture, role, members))]
    return [*found, *_bytes(capture, training_ns), *_network(capture), *wait_sentences(capture)]


def _nodes(capture: Capture) -> str:
    count: dict[str, int] = {}
    for process in capture.processes:
        recorded = process.origin.node if process.origin is not None else ""
        place = node_of(process.host, recorded, capture.nodes)
        count[place] = count.get(place, 0) + 1
    names = []
    of_ray = any(process.origin is not None and process.origin.ray for process in capture.processes)
    for node in capture.nodes[:MOST_NODES]:
        role = "driver, " if node.driver and of_ray else ""
        number = count.get(node.node, 0) + node.folded
        names.append(f"{node.name}: {role}{number} process{'' if number == 1 else 'es'}")
    more = f"; and {len(capture.nodes) - MOST_NODES} more" if len(capture.nodes) > MOST_NODES else ""
    others = [node for node in capture.nodes if not node.driver]
    known = [node.clock_uncertainty_ns for node in others]
    offsets = [abs(measured[1]) for node in others for measured in node.clock]
    if any(one is None for one in known):
        clocks = (
            "Not all of their clocks could be compared, so orders of events between them are not claimed."
        )
    elif not any(offsets):
        clocks = "They share one clock."
    else:
        worst = max(one for one in known if one is not None)
        clocks = f"Their clocks are aligned to {duration(worst)}; closer orders of events are not claimed."
    return f"{len(capture.nodes)} nodes ({'; '.join(names)}{more}). {clocks}"


def _spread(capture: Capture, role: Role, members: Sequence[Member]) -> str:
    """How much the members of a role differ in their work, and who is slowest."""
    if len(role.members) < 2:
        return ""
    mine = [members[number] for number in role.members]
    work = [member.states.running + member.states.ready + member.states.gil for member in mine]
    held = [one + member.states.blocked for one, member in zip(work, mine, strict=True)]
    texts = []
    if max(work) - min(work) >= LEAST_SPREAD:
        texts.append(f"work {percent(min(work))} to {percent(max(work))} of their time")
    middle, slowest = median(held), mine[held.index(max(held))]
    in_tasks = [spent_ns for member in mine if (spent_ns := _ns_in_tasks(capture, member)) is not None]
    if len(in_tasks) == len(mine):  # what a member did before its tasks, such as its start, is not among them
        longest_ns = max(member.wall_ns for member in mine)
        texts += _slowest_in_tasks(mine, in_tasks, longest_ns)
    elif len(mine) > 2 and max(held) > STRAGGLES * middle > 0 and max(held) - middle >= LEAST_SPREAD:
        times = f"{max(held) / middle:.1f} times as much as the median"
        if slowest.states.blocked < max(held) / 2:
            texts.append(f"{slowest.name} works {times}")
        else:  # it sleeps, reads or writes in its own tasks: the others wait for that, too
            texts.append(f"{slowest.name} works or is blocked {percent(max(held))} of its time, {times}")
    if not texts:
        return ""
    first, *rest = texts
    first = (
        f"The {len(mine)} {role.name} {first}"
        if first.startswith("work ")
        else f"Of the {len(mine)} {role.name}, {first}"
    )
    return f"{'; '.join([first, *rest])}."


def _slowest_in_tasks(mine: Sequence[Member], in_tasks: Sequence[float], longest_ns: int) -> list[str]:
    middle, most = median(in_tasks), max(in_tasks)
    if len(mine) < 3 or not most > STRAGGLES * middle > 0 or most - middle < LEAST_SPREAD * longest_ns:
        return []
    name = mine[in_tasks.index(most)].name
    return [f"{name} spent {duration(most)} in its tasks, {most / middle:.1f} times as much as the median"]


def _ns_in_tasks(capture: Capture, member: Member) -> float | None:
    """Time that a worker of Ray spent in tasks, without waits in them; None: it is none."""
    if member.thread is None:
        return None
    tasks = [
        node
        for node in capture.processes[member.process].threads[member.thread].root.children
        if node.name == RAY_TASK
    ]
    if not tasks:
        return None
    methods = (node for task in tasks for node in task.children if not node.name.endswith("__init__"))
    return sum(map(_without_waits, methods))


def _without_waits(node: Node) -> float:
    if node.category == "wait":
        return 0.0
    return node.total_ns - sum(child.total_ns - _without_waits(child) for child in node.children)


def _bytes(capture: Capture, training_ns: int) -> list[str]:
    sent = sum(_moved(thread.root, "ray_serialize") for thread in capture.threads)
    if not sent or not training_ns:
        return []
    rate = sent / training_ns * 1e9
    return [f"Ray was given {size(sent)} of objects to send, {size(rate)} per second."]


def _network(capture: Capture) -> list[str]:
    """What went over the network, by computer: several nodes may be on one."""
    computers = {node.network_id: node for node in capture.nodes if node.network_id}
    if len(computers) == 1 and len(capture.nodes) > 1 and all(node.network_id for node in capture.nodes):
        return ["All nodes are on one computer, so nothing went over a network."]
    texts = []
    for node in sorted(computers.values(), key=lambda one: (-sum((one.network or (0, 0, 0))[1:]), one.name)):
        if node.network is not None and node.network[0] > 0 and len(computers) > 1:
            spent_ns, received, sent = node.network
            rate = size((received + sent) / spent_ns * 1e9)
            texts.append(f"{node.name} received {size(received)} and sent {size(sent)} ({rate} per second)")
    more = f"; and {len(texts) - MOST_NODES} more" if len(texts) > MOST_NODES else ""
    told = "; ".join(texts[:MOST_NODES])
    return [f"Over the network, by all programs of each computer: {told}{more}."] if texts else []


def _moved(root: Node, name: str) -> float:
    todo, found = [root], 0.0
    while todo:
        node = todo.pop()
        found += node.bytes_moved if node.name == name else 0.0
        todo += node.children
    return found
