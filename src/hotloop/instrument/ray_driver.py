"""The driver of a Ray job: its workers join the capture, on every node, and what they record comes home.

`ray.init` connects the driver with a runtime environment for the job; our hook is added to it, and what the
user has put there stays. On nodes other than the driver's, a small actor without CPUs answers for its node
(`ray_node.py`). A thread of the driver asks it every few seconds, and at the end.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.files import write_atomically
from hotloop._util.interrupts import is_users, suppress_own
from hotloop._util.read_files import json_text
from hotloop.capture.folder import RUN_ID_VARIABLE
from hotloop.capture.nodes import FOLDER
from hotloop.instrument import process_facts, ray_times
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.ray_hook import COURIER_VARIABLE, Settings, worker_hook
from hotloop.instrument.ray_node import FOLDED, Asked, NetworkMeter, News, clock_id, network_id, store
from hotloop.measure import origin
from hotloop.measure.profiler import default

FIRST_S = 0.2  # until the first round: our actors start while those of the job do
INTERVAL_S = 4.0  # between two rounds over all nodes, or longer so that
MOST_OF_A_CORE = 0.005  # is what their thread takes; at most
LONGEST_S = 30.0
LIST_S = 10.0  # between two looks at which nodes there are; all of them come from Ray's head
ANSWER_S = 20.0  # a node that answers later than this is asked again in the next round
END_VARIABLE = "HOTLOOP_WAIT_FOR_NODES"  # environment of the driver; replaces:
END_S = 60  # for the last round, when the driver is about to leave; nearly always a moment
LONG_S = 5.0  # after which the user is told what it waits for
CLOCK_S = 30.0  # between two measurements of a node's clock, which cost 30 ms of CPU time
ROUND_TRIPS = 16  # of which the fastest tells the offset of a clock
MOST_PARTS_VARIABLE = "HOTLOOP_SUMMARY_ABOVE"  # environment of the driver; replaces:
MOST_PARTS = 64  # recordings of a node that are sent one by one; with more of them it sends a summary
SETUP_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"

_earlier: Cluster | None = None  # the one before: a script may leave a cluster and connect again
own_work = default.profile("hotloop_cluster", "hotloop")  # calls of Ray inside are ours, not the user's
cluster: Cluster | None = None  # of this driver


def patch_connect(module: ModuleType, into: Patches) -> None:
    """`ray._private.worker`: `connect`, which every `ray.init` calls with the job's complete settings."""
    into.apply([Patch(module, "connect", _joining)])
    shutdown = module.shutdown
    into.apply([Patch(module, "shutdown", _collecting_first)])
    package = sys.modules.get("ray")
    if package is not None and vars(package).get("shutdown") is shutdown:
        into.apply([Patch(package, "shutdown", lambda original: module.shutdown)])
    atexit.register(_collect)  # Ray's own was registered before, so it runs after ours


def _joining(connect: Callable[..., Any]) -> Callable[..., Any]:
    worker: Any = sys.modules["ray._private.worker"]

    def call(*args: Any, **kwargs: Any) -> Any:
        settings = None
        is_driver = kwargs.get("mode") == worker.SCRIPT_MODE and bool(process_facts.entry)
        if is_driver and default.is_recording and default.folder is not None:
            try:
                settings = _add_hook(kwargs.get("job_config"), default.folder)
            except Exception as error:  # another version of Ray: the workers are not recorded
                if is_users(error):
                    raise
                _tell(f"the workers of Ray are not recorded ({error!r})")
        result = connect(*args, **kwargs)
        if settings is not None:
            with suppress_own(Exception):
                _begin(settings)
        return result

    return call


def _add_hook(job: Any, folder: Path) -> Settings:
    """Add our hook to the job's runtime environment, in front of the user's own."""
    settings = Settings(
        capture=str(folder),
        run_id=os.environ[RUN_ID_VARIABLE],
        options=process_facts.run_options,
        entry=process_facts.entry,
        home=str(Path(__file__).parents[2]),
        version=HOTLOOP_VERSION,
    )
    environment = dict(job.runtime_env or {})
    variables = dict(environment.get("env_vars") or {})
    users = variables.pop(SETUP_HOOK_VARIABLE, None) or environment.get("worker_process_setup_hook")
    environment["worker_process_setup_hook"] = worker_hook(settings, users)
    if "env_vars" in environment:
        environment["env_vars"] = variables
    job.set_runtime_env(environment)
    return settings


def _begin(settings: Settings) -> None:
    global cluster
    worker: Any = sys.modules["ray._private.worker"]
    origin.more = functools.partial(describe, worker.global_worker, "driver")
    origin.more()
    cluster = Cluster(settings, _earlier)
    cluster.start()


_known: dict[str, Any] = {}  # of this process: a driver that has left its cluster is still described


def describe(worker: Any, role: str) -> dict[str, Any]:
    """Fields of `capture.origin.Origin`: what a process is to a Ray job, its node, the class of its actor."""
    _known["ray"] = role
    with suppress_own(Exception):
        _known["node"] = worker.current_node_id.hex()
        ray_times.set_node(_known["node"])
        actors = list(worker.actors.values())
        if actors and role == "worker":
            _known["actor"] = class_name(type(actors[0]))
    return dict(_known)


WRAPPERS = ("_Wrapped",)  # how names of classes begin that Ray derives from the one that matters


def class_name(cls: type) -> str:
    """The name of a class of actors, or of the class inside, if Ray has wrapped it (`_WrappedExecutable`)."""
    return next((one.__name__ for one in cls.__mro__ if not one.__name__.startswith(WRAPPERS)), cls.__name__)


def _collecting_first(shutdown: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _collect()
        return shutdown(*args, **kwargs)

    return call


def _collect() -> None:
    global cluster, _earlier
    ending, cluster = cluster, None
    _earlier = ending or _earlier
    if ending is not None and ending.pid == os.getpid():
        with suppress_own(Exception):
            ending.finish()


def _tell(sentence: str) -> None:
    """Say what is not recorded, in one line, and in the report."""
    with suppress_own(Exception):
        print(f"hotloop: {sentence}", file=sys.stderr)
    process_facts.note_problem(sentence)


def courier_class() -> type:
    """The actor of a node. Sent by value, as `worker_hook` is, so that a node without hotloop can say so."""

    class HotloopCourier:
        def __init__(self, capture: str, run_id: str, home: str):
            import importlib
            import sys

            self.problem = ""
            self.node: Any = None
            try:
                try:
                    ours = importlib.import_module("hotloop.instrument.ray_node")
                except ImportError:
                    sys.path.append(home)
                    try:
                        ours = importlib.import_module("hotloop.instrument.ray_node")
                    finally:
                        sys.path.remove(home)
                self.node = ours.NodeRecordings(capture, run_id)
            except ImportError as error:
                self.problem = f"hotloop cannot be imported there: {error}"

        def ask(self, question: str, *args: Any) -> Any:
            return (self.problem, None) if self.node is None else ("", getattr(self.node, question)(*args))

    return HotloopCourier


class NodeLink:
    """What the driver knows of one other node."""

    def __init__(self, facts: dict[str, Any], actor: Any):
        self.id: str = facts["NodeID"]
        self.address: str = facts.get("NodeManagerAddress") or ""
        self.host: str = facts.get("NodeManagerHostname") or ""
        self.actor = actor
        self.hello: dict[str, Any] | None = None
        self.problem = ""
        self.lost = False
        self.again = False  # the last answer was lost: send everything
        self.running: list[int] = []
        self.seen_ns: int | None = None  # real time of the driver when the last answer came
        self.complete = False  # everything up to the end of the run has come
        self.received_bytes = 0
        self.files: set[str] = set()  # that it has sent
        self.folded = 0  # processes in its summary; 0: it sends its recordings
        self.network: tuple[int, int, int] | None = None
        self.clock: list[list[int]] = []  # driver's monotonic time, offset, uncertainty, each in ns
        self.clock_due_s = 0.0  # monotonic time of the next measurement
        self._network_before = (0, 0, 0)  # while the driver was connected earlier

    def go_on_from(self, earlier: NodeLink) -> None:
        """Keep what came from this node when the driver was connected earlier."""
        self.received_bytes, self.clock = earlier.received_bytes, earlier.clock
        self._network_before = earlier.whole_network or (0, 0, 0)

    @property
    def whole_network(self) -> tuple[int, int, int] | None:
        """As `NetworkMeter.read` says, over all connections."""
        if self.network is None:
            return self._network_before if any(self._network_before) else None
        spent_ns, received, sent = self.network
        before_ns, received_before, sent_before = self._network_before
        return spent_ns + before_ns, received + received_before, sent + sent_before

    def facts(self) -> dict[str, Any]:
        """As saved in the capture."""
        return {
            "node": self.id,
            "address": self.address,
            "host": (self.hello or {}).get("host") or self.host,
            "shared": bool((self.hello or {}).get("shared")),
            "folder": (self.hello or {}).get("folder", ""),
            "problem": self.problem,
            "lost": self.lost,
            "seen_ns": self.seen_ns,
            "complete": self.complete,
            "running": self.running,
            "received_bytes": self.received_bytes,
            "folded": self.folded,
            "network_id": (self.hello or {}).get("network_id", ""),
            "network": self.whole_network,
            "clock": self.clock,
        }


class Cluster:
    """The other nodes of the driver's cluster, looked after by a thread."""

    def __init__(self, settings: Settings, earlier: Cluster | None = None):
        self.pid = os.getpid()
        self.settings = settings
        self.folder = Path(settings["capture"])
        self.ray: Any = sys.modules["ray"]
        self.nodes: dict[str, NodeLink] = {}
        self._here = self.ray.get_runtime_context().get_node_id()
        self._clock_id = clock_id()
        self._network: NetworkMeter = NetworkMeter() if earlier is None else earlier._network
        self._earlier_nodes: dict[str, NodeLink] = (
            {} if earlier is None else {**earlier._earlier_nodes, **earlier.nodes}
        )
        self._class: Any = None
        self._ends = False
        self._pause = threading.Lock()  # held until the thread is to end: waiting for it is no region
        self._pause.acquire()
        self._lock = threading.Lock()
        self._list_due_s = 0.0  # monotonic time when it is asked again
        self._thread = threading.Thread(target=self._run, name="hotloop cluster", daemon=True)
        self._told: set[str] = set()
        self._told_to_wait = False
        self._begin_real_ns = time.time_ns()
        self._most_parts = _whole_number(MOST_PARTS_VARIABLE, MOST_PARTS)
        self._end_s = _whole_number(END_VARIABLE, END_S)

    def start(self) -> None:
        (self.folder / FOLDER).mkdir(exist_ok=True)
        self._save_own()
        self._thread.start()

    def _save_own(self) -> None:
        """Save the facts about the driver's node."""
        here = {"node": self._here, "driver": True, "host": os.uname().nodename, "shared": True,
                "complete": True, "network_id": network_id(), "network": self._network.read()}  # fmt: skip
        write_atomically(self.folder / FOLDER / f"{self._here}.json", json_text(here))

    def finish(self) -> None:
        """One more round; the driver is about to leave the cluster."""
        deadline = time.monotonic() + self._end_s
        if not self._ends:
            self._ends = True
            self._pause.release()
        if self._in_time(lambda left_s: self._lock.acquire(timeout=left_s), deadline):
            try:
                self.round(deadline, last=True)
            finally:
                self._lock.release()

    def _in_time(self, wait: Callable[[float], bool], deadline: float) -> bool:
        """Wait until the deadline; at the end of the job, users are told what takes so long."""
        if self._ends and wait(min(max(deadline - time.monotonic(), 0.0), LONG_S)):
            return True
        left_s = max(deadline - time.monotonic(), 0.0)
        if self._ends and left_s and not self._told_to_wait:
            self._told_to_wait = True
            with suppress_own(Exception):
                seconds = f"at most {left_s:.0f} s more; Ctrl-C leaves it there"
                print(f"hotloop: waiting for what other nodes recorded ({seconds})", file=sys.stderr)
        return wait(left_s)

    def _run(self) -> None:
        pause_s, before_s = FIRST_S, 0.0
        with own_work:  # as a whole: what this thread waits is nobody's time
            while not self._pause.acquire(timeout=pause_s):
                began_s = time.thread_time()
                with self._lock:
                    if self._ends:
                        return
                    try:
                        self._round(time.monotonic() + ANSWER_S, last=False)
                    except Exception as error:
                        if is_users(error):
                            raise
                        self._say("round", f"news of the other nodes could not be collected ({error!r})")
                took_s = time.thread_time() - began_s
                pause_s, before_s = pause_after(before_s, took_s), took_s

    def _say(self, key: str, sentence: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _tell(sentence)

    # -- one round -------------------------------------------------------------------------------

    def round(self, deadline: float, last: bool = False) -> None:
        """Ask every other node for news until then; nodes that come and go are noticed."""
        with own_work:
            self._round(deadline, last)

    def _round(self, deadline: float, last: bool) -> None:
        if last or time.monotonic() >= self._list_due_s:
            self._list_nodes()
        asked = [link for link in self.nodes.values() if not link.lost and not link.problem]
        self._greet([link for link in asked if link.hello is None], deadline)
        known = [link for link in asked if link.hello is not None and not link.problem]
        for link in known:
            if last or time.monotonic() >= link.clock_due_s:
                link.clock_due_s = time.monotonic() + CLOCK_S
                self._measure_clock(link, deadline)
        self._fetch(known, deadline, last)
        for link in self.nodes.values():
            self._save(link)
        if self.nodes:
            with suppress_own(OSError):
                self._save_own()

    def _list_nodes(self) -> None:
        """Ask Ray which nodes there are: that takes as much CPU time as asking one of them for news."""
        self._list_due_s = time.monotonic() + LIST_S
        present = {facts["NodeID"]: facts for facts in self.ray.nodes() if facts.get("Alive")}
        for node_id, facts in present.items():
            if node_id != self._here and node_id not in self.nodes:
                link = self.nodes[node_id] = NodeLink(facts, self._new_actor(node_id))
                if node_id in self._earlier_nodes:
                    link.go_on_from(self._earlier_nodes[node_id])
        for node_id, link in self.nodes.items():
            link.lost = link.lost or node_id not in present

    def _new_actor(self, node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # Ray is loaded here

        if self._class is None:
            self._class = self.ray.remote(courier_class())
        where = NodeAffinitySchedulingStrategy(node_id, soft=False)
        s = self.settings
        return self._class.options(
            num_cpus=0, scheduling_strategy=where, runtime_env={"env_vars": {COURIER_VARIABLE: "1"}}
        ).remote(s["capture"], s["run_id"], s["home"])

    def _greet(self, links: list[NodeLink], deadline: float) -> None:
        for link, answer in self._ask(links, deadline, "hello"):
            link.hello = answer
            if answer["version"] != HOTLOOP_VERSION:
                link.problem = f"it has hotloop {answer['version']}, the driver {HOTLOOP_VERSION}"
                self._complain(link)

    def _fetch(self, links: list[NodeLink], deadline: float, last: bool) -> None:
        while links and time.monotonic() < deadline:
            more = []
            again = [link for link in links if link.again]
            first = [link for link in links if not link.again]
            for link in links:
                link.again = True
            answers = self._ask_news(first, deadline, again=False, last=last)
            answers += self._ask_news(again, deadline, again=True, last=last)
            for link, news in answers:
                link.received_bytes += store(self.folder, news.files)
                link.files |= {file.name for file in news.files}
                link.again, link.running, link.seen_ns = False, news.running, time.time_ns()
                link.network = news.network
                self._note_folded(link, news.folded)
                if news.more:
                    more.append(link)
                elif last:
                    link.complete = True
            links = more
        if last:
            self._ask([link for link in self.nodes.values() if link.complete], deadline, "forget")

    def _ask_news(
        self, links: list[NodeLink], deadline: float, again: bool, last: bool
    ) -> list[tuple[NodeLink, News]]:
        """News of these nodes, each told its own id."""
        asked = Asked(again, last, self._most_parts, "", self._begin_real_ns, time.time_ns())
        return self._ask(links, deadline, "news", lambda link: asked._replace(node=link.id))

    def _note_folded(self, link: NodeLink, folded: int) -> None:
        """Recordings that a node sent before its summary are part of that."""
        if folded and not link.folded:
            for name in [name for name in link.files if name.startswith(FOLDED)]:
                with suppress_own(OSError):
                    (self.folder / name).unlink(missing_ok=True)
        link.folded = folded

    def _measure_clock(self, link: NodeLink, deadline: float) -> None:
        """Offset of a node's monotonic clock: from the fastest of several round trips."""
        if link.hello is not None and self._clock_id and link.hello.get("clock_id") == self._clock_id:
            link.clock = [[time.monotonic_ns(), 0, 0]]
            return
        best: list[int] | None = None
        for _ in range(ROUND_TRIPS):
            before = time.monotonic_ns()
            answers = self._ask([link], deadline, "clock")
            after = time.monotonic_ns()
            if not answers:
                break
            middle, half = (before + after) // 2, (after - before) // 2 + 1
            if best is None or half < best[2]:
                best = [middle, answers[0][1][0] - middle, half]
        if best is not None:
            link.clock = thinned([*link.clock, best])

    def _ask(
        self, links: list[NodeLink], deadline: float, question: str, *args: Any
    ) -> list[tuple[NodeLink, Any]]:
        """The answers of those nodes that give one in time; an argument may depend on the node."""
        if not links:
            return []
        refs = {
            link.actor.ask.remote(question, *(arg(link) if callable(arg) else arg for arg in args)): link
            for link in links
        }
        ready: list[Any] = []

        def wait(left_s: float) -> bool:
            ready[:], left = self.ray.wait(list(refs), num_returns=len(refs), timeout=left_s)
            return not left

        self._in_time(wait, deadline)
        found = []
        for ref in ready:
            link = refs[ref]
            try:
                problem, answer = self.ray.get(ref)
            except Exception as error:
                if is_users(error):
                    raise
                self._list_due_s = 0.0  # if it is lost, the next round notices
                if link.hello is not None:
                    continue  # it may come back
                problem, answer = f"its actor failed: {type(error).__name__}", None
            if problem:
                link.problem = problem
                self._complain(link)
            else:
                found.append((link, answer))
        return found

    def _complain(self, link: NodeLink) -> None:
        name = link.host or link.address or link.id[:8]
        with suppress_own(Exception):
            print(f"hotloop: node {name} is not recorded: {link.problem}", file=sys.stderr)

    def _save(self, link: NodeLink) -> None:
        with suppress_own(OSError):
            write_atomically(self.folder / FOLDER / f"{link.id}.json", json_text(link.facts()))


def _whole_number(variable: str, otherwise: int) -> int:
    given = os.environ.get(variable, "")
    return int(given) if given.isdecimal() else otherwise


def pause_after(before_s: float, took_s: float) -> float:
    """How long to wait, from the CPU time of two rounds: the cheaper one, as one may have done more."""
    return min(max(INTERVAL_S, min(before_s, took_s) / MOST_OF_A_CORE), LONGEST_S)


MOST_OFFSETS = 256


def thinned(offsets: list[list[int]]) -> list[list[int]]:
    """At most 256 measurements of a clock: of two neighbours, the more certain one stays."""
    if len(offsets) <= MOST_OFFSETS:
        return offsets
    pairs = zip(offsets[::2], offsets[1::2], strict=False)
    kept = [min(pair, key=lambda measured: measured[2]) for pair in pairs]
    return kept + offsets[len(offsets) // 2 * 2 :]
