"""The nodes of a Ray cluster as places for runs: each is held by an actor that makes one run at a time.

`connect("ray://10.0.0.1:6379", ...)` yields `RayNodes`, whose `lanes`, `start` and `end_running` are what
`run_plan` needs. Both runs of a pair go to the same node, since a lane makes whole blocks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop._util.ray_cluster import address_of, connected, first_line, node_actor
from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.lab import process
from hotloop.lab.lanes import Node, NodeLost
from hotloop.lab.process import Job, MakeRun, Outcome
from hotloop.lab.ray_node import HOME, Made, identity, pack, project_files, unpack

FREE_S = 180.0  # for a node to become free and to start our actor


@contextlib.contextmanager
def connect(on: str, resources: Mapping[str, float], note: Callable[[str], None]) -> Iterator[RayNodes]:
    """Hold the nodes of a cluster that have these resources (none: every node, as a whole).

    Raises HotloopError if there is no cluster, or a node cannot run hotloop.
    """
    address_of(on)
    ray = require_extra("ray", "ray")
    with connected(ray, on):
        nodes = RayNodes(ray, resources, note)
        try:
            nodes.take()
            yield nodes
        finally:
            nodes.release()


class RayNodes:
    """The nodes that the lab holds."""

    def __init__(self, ray: Any, resources: Mapping[str, float], note: Callable[[str], None]):
        self._ray = ray
        self._resources = dict(resources)
        self._note = note
        self._actors: dict[str, Any] = {}  # by name of the node
        self._ready: set[tuple[str, str]] = set()  # node and working folder
        self._shared: dict[tuple[str, str], bool] = {}  # node and series -> whether it sees the folder
        self._packed: dict[str, Any] = {}  # working folder -> its copy in the object store
        self._lock = threading.Lock()
        self.machines: dict[str, dict[str, Any]] = {}  # facts about each node, by name

    @property
    def lanes(self) -> tuple[Node, ...]:
        return tuple(Node(name) for name in self._actors)

    # -- taking nodes ----------------------------------------------------------------------------

    def take(self) -> None:
        """Start an actor on each node; raises HotloopError if there is none, or one without hotloop."""
        found = self._fitting()
        names = node_names(found)
        cls = self._ray.remote(node_actor("HotloopLabNode", "hotloop.lab.ray_node:LabNode"))
        asked: dict[Any, str] = {}
        held: dict[str, float] = {}
        for node in found:
            name = names[node["NodeID"]]
            self._actors[name] = self._new_actor(cls, node)
            held[name] = self._wanted(node).get("CPU", 0.0)
            asked[self._actors[name].ask.remote("hello")] = name
        ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=FREE_S)
        for ref in ready:
            try:
                problem, facts = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                raise HotloopError(f"Node {asked[ref]} cannot be used: {first_line(error)}.") from None
            if problem:
                raise HotloopError(
                    f"Node {asked[ref]} {problem}; install hotloop {HOTLOOP_VERSION} there, or leave it "
                    "out by asking for resources that it does not have."
                )
            self.machines[asked[ref]] = facts["machine"] | {"cpus_held": held[asked[ref]]}
        for ref in late:
            self._note(f"node {asked[ref]} was not free within {FREE_S:.0f} s and is left out")
            self._ray.kill(self._actors.pop(asked[ref]))
        if not self._actors:
            raise HotloopError("No node of the cluster became free; wait for its jobs, or ask for less.")

    def _fitting(self) -> list[dict[str, Any]]:
        alive = [node for node in self._ray.nodes() if node.get("Alive")]
        wanted = self._resources or {"CPU": 1.0}
        found = [
            node
            for node in alive
            if all(node["Resources"].get(name, 0.0) >= amount for name, amount in wanted.items())
        ]
        if not found:
            asked = ", ".join(f"{name}={amount:g}" for name, amount in wanted.items())
            raise HotloopError(f"None of the {len(alive)} nodes of the cluster has {asked}; ask for less.")
        return found

    def _new_actor(self, cls: Any, node: Mapping[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # Ray is loaded here

        wanted = self._wanted(node)
        return cls.options(
            num_cpus=wanted.get("CPU", 0),
            num_gpus=wanted.get("GPU", 0),
            resources={name: amount for name, amount in wanted.items() if name not in ("CPU", "GPU")},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            max_concurrency=4,  # so that a run can be ended
        ).remote(str(HOME), HOTLOOP_VERSION)

    def _wanted(self, node: Mapping[str, Any]) -> dict[str, float]:
        """What the lab holds of a node: what was asked for, or all of it."""
        has = node["Resources"]
        return self._resources or {name: has[name] for name in ("CPU", "GPU") if has.get(name)}

    def release(self) -> None:
        """Give all nodes back."""
        refs = [actor.ask.remote("forget") for actor in self._actors.values()]
        with contextlib.suppress(Exception):  # a node may be gone
            self._ray.wait(refs, num_returns=len(refs), timeout=10)
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    # -- runs ------------------------------------------------------------------------------------

    def start(self, job: Job, make: MakeRun = process.run) -> Outcome:
        """Make a run on the node that the job names; raises NodeLost."""
        actor = self._actors[job.node]
        capture = job.environment.get(CAPTURE_VARIABLE)
        try:
            self._prepare(job.node, job.folder)
            shared = capture is not None and self._sees_series(job.node, Path(capture).parents[2])
            made: Made = self._ask(actor, "run", job, str(HOME), sys.executable, shared, make)
        except self._ray.exceptions.RayError as error:
            self._actors.pop(job.node, None)
            raise NodeLost(f"node {job.node} was lost: {first_line(error)}") from None
        if made.files is not None and capture is not None:
            unpack(made.files, Path(capture).parent)
        return made.outcome

    def end_running(self, insist: bool) -> None:
        """End all runs under way."""
        for actor in tuple(self._actors.values()):
            with contextlib.suppress(Exception):
                actor.ask.remote("end", insist)

    def _ask(self, actor: Any, question: str, *args: Any) -> Any:
        problem, answer = self._ray.get(actor.ask.remote(question, *args))
        if problem:
            raise HotloopError(problem)
        return answer

    def _prepare(self, node: str, folder: Path) -> None:
        """Copy a working folder to a node that does not see it."""
        if (node, str(folder)) in self._ready:
            return
        if not self._ask(self._actors[node], "sees", str(folder), identity(folder)):
            with self._lock:
                if str(folder) not in self._packed:
                    self._packed[str(folder)] = self._ray.put(_packed(folder))
            self._ask_unpack(node, folder)
        self._ready.add((node, str(folder)))

    def _ask_unpack(self, node: str, folder: Path) -> None:
        # A reference that is itself an argument is replaced by its object, read from the store of the node.
        self._ray.get(self._actors[node].ask.remote("unpack", str(folder), self._packed[str(folder)]))

    def _sees_series(self, node: str, series: Path) -> bool:
        key = (node, str(series))
        if key not in self._shared:
            self._shared[key] = self._ask(self._actors[node], "sees", str(series), identity(series))
        return self._shared[key]


def _packed(folder: Path) -> bytes:
    try:
        return pack(folder, project_files(folder))
    except (OSError, ValueError) as error:
        raise HotloopError(
            f"{folder} cannot be copied to nodes that do not share it: {error}; start in a smaller folder."
        ) from None


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A name for each node id: its host, with the beginning of the id where several have the same."""
    hosts = {n["NodeID"]: str(n.get("NodeManagerHostname") or n["NodeManagerAddress"]) for n in nodes}
    often = Counter(hosts.values())
    return {
        node_id: f"{host}/{node_id[:6]}" if often[host] > 1 or not host else host
        for node_id, host in sorted(hosts.items(), key=lambda item: (item[1], item[0]))
    }
