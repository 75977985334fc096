"""PPO with several learners on the nodes of a Ray cluster; the driver places them, watches them and resumes.

Each learner is an actor that steps its share of the envs and learns from it (`ray_rank.py`); gradients are
added up between them by torch.distributed (gloo), not through Ray. The first one's checkpoints come to the
driver. When a learner, or its node, is lost, all of them start again from the last checkpoint, on the nodes
that are left. The numbers of the run are those of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop._util.files import replacing
from hotloop._util.ray_cluster import address_of, connected, first_line, node_actor
from hotloop._util.units import count
from hotloop.rl.collect.ray_nodes import spread
from hotloop.rl.train import runs
from hotloop.rl.train.ppo import PPOConfig, PPOResult, check_config
from hotloop.rl.train.ranks import RankLost
from hotloop.rl.train.ray_rank import News

START_S = 180.0  # for a node to become free and to start our actor
SETTLE_S = 30.0  # for the other learners to say what happened to them, when one has failed
POLL_S = 0.5
MAX_LOSSES = 3  # in a row, without a checkpoint in between

MakeEnvs = Callable[[int], Any]
"""n_envs -> vector env; importable on the nodes, or defined in the script itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Learners that were lost, and where the run went on."""

    learners: tuple[int, ...]
    nodes: tuple[str, ...]  # where they were
    what: str
    env_steps: int  # of the run, as far as the driver knew
    resumed_at: int  # env steps of the checkpoint; what came after it was made again
    seconds: float | None  # until the learners trained again; None if others were lost before that


@dataclass(frozen=True, slots=True)
class TrainedOnRay:
    """Result of a run, and what happened to its learners."""

    result: PPOResult
    nodes: tuple[str, ...]  # of the learners at the end
    losses: tuple[Loss, ...]

    @property
    def repeated_steps(self) -> int:
        """Env steps that were made again because their learners were lost; at least, as news are rare."""
        return sum(loss.env_steps - loss.resumed_at for loss in self.losses)


def train_on_ray(
    config: PPOConfig,
    make_envs: MakeEnvs,
    learners: int,
    on: str = "ray",
    *,
    log: Callable[[str], None] | None = None,
    note: Callable[[], str] | None = None,
) -> TrainedOnRay:
    """Train with `learners` ranks on the cluster that `on` names; raises HotloopError.

    `config` is that of the whole run, with `checkpoint` and `tensorboard_log` on this computer and on the
    first learner's node, respectively.
    """
    check_config(config)
    address_of(on)
    if not 1 <= learners <= config.n_envs:
        raise HotloopError(
            f"learners={learners} must be between 1 and n_envs={config.n_envs}: each steps some of the envs."
        )
    ray: Any = require_extra("ray", "ray")
    with connected(ray, on):
        return _Learners(ray, config, make_envs, learners, log or _print, note).train()


class _Failed(Exception):
    """Some learners are lost."""

    def __init__(self, learners: list[int], what: str):
        super().__init__(what)
        self.learners, self.what = learners, what


class _Learners:
    def __init__(
        self,
        ray: Any,
        config: PPOConfig,
        make_envs: MakeEnvs,
        size: int,
        log: Callable[[str], None],
        note: Callable[[], str] | None,
    ):
        self._ray, self._config, self._size, self._log, self._note = ray, config, size, log, note
        cloudpickle = require_extra("cloudpickle", "rl")
        self._task = cloudpickle.dumps(
            (dataclasses.replace(config, checkpoint=None, resume=False), make_envs)
        )
        self._class = ray.remote(concurrency_groups={"news": 1})(
            node_actor("HotloopLearner", "hotloop.rl.train.ray_rank:LearnerRank")
        )
        self._actors: list[Any] = []
        self._nodes: list[str] = []  # of the learners
        self._checkpoint: bytes | None = None
        self._saved_at = self._env_steps = 0
        self._unsaved: str | None = None
        self._losses: list[Loss] = []
        self._lost_in_a_row = 0
        self._lost_s: float | None = None  # when, if the learners do not train again yet
        self._avoid: set[str] = set()  # nodes of lost learners: Ray notices the end of an actor first
        if config.resume:
            saved = runs.load_run(config)
            assert saved is not None and config.checkpoint is not None
            self._checkpoint = config.checkpoint.read_bytes()
            self._saved_at = self._env_steps = saved.state["env_steps"]

    def train(self) -> TrainedOnRay:
        resumed_at, began_s = self._saved_at, 0.0
        line = runs.ProgressLine(self._config.total_timesteps, self._env_steps, quiet=self._config.quiet)
        with runs.StopRequests() as stop, contextlib.closing(line):
            while True:
                try:
                    refs = self._start()
                    began_s = began_s or time.perf_counter()
                    result = self._watch(refs, stop, line)
                    break
                except _Failed as lost:
                    self._lose(lost)
                finally:
                    self._end_actors()
        seconds = time.perf_counter() - began_s if self._losses else result.seconds
        result = dataclasses.replace(
            result, seconds=seconds, resumed_at=resumed_at, unsaved=self._unsaved or result.unsaved
        )
        return TrainedOnRay(result, tuple(self._nodes), tuple(self._losses))

    # ---- starting

    def _start(self) -> list[Any]:
        """Start the actors, let them find each other, and begin training; returns what each will answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # Ray is loaded here

        alive = {node["NodeID"]: node for node in self._ray.nodes() if node.get("Alive")}
        cpus = {name: node["Resources"].get("CPU", 0.0) for name, node in alive.items()}
        cpus = {name: n for name, n in cpus.items() if n}
        cpus = {name: n for name, n in cpus.items() if name not in self._avoid} or cpus
        if not cpus:
            raise HotloopError("No node of the Ray cluster has a CPU; start one with `ray start --num-cpus`.")
        counts = spread(self._size, cpus)
        self._nodes = [node for node, n in sorted(counts.items()) for _ in range(n)]
        home = str(Path(__file__).parents[3])
        for rank, node in enumerate(self._nodes):
            # When learners start again, those before may still hold their CPUs.
            held = 0.0 if self._losses else min(1.0, cpus[node] / counts[node])
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            made = self._class.options(num_cpus=held, scheduling_strategy=where)
            self._actors.append(made.remote(home, HOTLOOP_VERSION, self._task, rank, self._size))
        self._ask_all("hello")
        addresses = [alive[node]["NodeManagerAddress"] for node in self._nodes]
        port = self._ask_all("open_store", addresses[0], ranks=(0,))[0] if self._size > 1 else 0
        content = None if self._checkpoint is None else self._ray.put(self._checkpoint)
        return [
            actor.ask.remote("train", own, addresses[0], port, content)
            for actor, own in zip(self._actors, addresses, strict=True)
        ]

    def _ask_all(self, question: str, *args: Any, ranks: tuple[int, ...] | None = None) -> list[Any]:
        chosen = range(self._size) if ranks is None else ranks
        refs = [self._actors[rank].ask.remote(question, *args) for rank in chosen]
        _, late = self._ray.wait(refs, num_returns=len(refs), timeout=START_S)
        if late:
            node = self._nodes[chosen[refs.index(late[0])]]
            raise HotloopError(
                f"Node {node[:6]} had no free CPU for {START_S:.0f} s; use fewer learners, or wait for it."
            )
        answers, lost, what = [], [], ""
        for rank, ref in zip(chosen, refs, strict=True):
            try:
                problem, answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                raise _raised(error) from None
            except self._ray.exceptions.RayError as error:
                lost.append(rank)
                what = first_line(error)
                continue
            if problem:
                raise HotloopError(
                    f"Node {self._nodes[rank][:6]} {problem}; install hotloop {HOTLOOP_VERSION} there."
                )
            answers.append(answer)
        if lost:
            raise _Failed(lost, what)
        return answers

    def _end_actors(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    # ---- watching

    def _watch(self, refs: list[Any], stop: runs.StopRequests, line: runs.ProgressLine) -> PPOResult:
        """Wait for the end, with an eye on how far it is; raises _Failed when a learner is lost."""
        asked, told = None, False
        while True:
            ready, left = self._ray.wait(refs, num_returns=1, timeout=POLL_S)
            if ready and (len(ready) == len(refs) or not self._is_alive(ready)):
                break
            if ready and left:  # one has ended; the others are about to
                self._ray.wait(refs, num_returns=len(refs), timeout=SETTLE_S)
                break
            if asked is None:
                asked = self._actors[0].ask.options(concurrency_group="news").remote("news")
            elif self._ray.wait([asked], timeout=0)[0]:
                with contextlib.suppress(self._ray.exceptions.RayError):  # `refs` tell
                    self._take(self._ray.get(asked)[1])
                asked = None
            line.update(self._env_steps, None, self._note() if self._note else f"{self._size} learners")
            if stop.by is not None and not told:
                self._actors[0].ask.options(concurrency_group="news").remote("stop", stop.by)
                told = True
        return self._results(refs)

    def _is_alive(self, refs: list[Any]) -> bool:
        """Whether those that have ended have done so with a result."""
        try:
            self._ray.get(refs)
        except self._ray.exceptions.RayError:
            return False
        return True

    def _results(self, refs: list[Any]) -> PPOResult:
        """The first learner's result; raises what a learner has raised, or _Failed."""
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=SETTLE_S)
        lost: dict[int, str] = {}
        silent: dict[int, str] = {}
        without: dict[int, str] = {}  # those that miss another one
        answers: dict[int, Any] = {}
        for rank, ref in enumerate(refs):
            if ref not in ready:
                silent[rank] = "it did not end"
                continue
            try:
                answers[rank] = self._ray.get(ref)[1]
            except self._ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, RankLost):
                    raise _raised(error) from None
                without[rank] = str(error.cause)
            except self._ray.exceptions.RayError as error:
                lost[rank] = first_line(error).split(":")[0]  # what follows is about Ray's messages
        if len(answers) == len(refs):
            result, news = answers[0]
            self._take(news)
            found: PPOResult = result
            return found
        first = lost or silent or without
        raise _Failed(list(first), next(iter(first.values())))

    def _take(self, news: News) -> None:
        if news.env_steps > self._saved_at and self._lost_s is not None:
            seconds, self._lost_s = time.perf_counter() - self._lost_s, None
            self._losses[-1] = dataclasses.replace(self._losses[-1], seconds=seconds)
            where = ", ".join(sorted({node[:6] for node in self._nodes}))
            self._log(f"hotloop: {self._size} learners train again, on nodes {where}")
        self._env_steps = max(self._env_steps, news.env_steps)
        if news.checkpoint is None:
            return
        self._checkpoint, self._saved_at = news.checkpoint, news.saved_at
        self._lost_in_a_row = 0
        path = self._config.checkpoint
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=True) as file:
                file.write(news.checkpoint)
            self._unsaved = None
        except OSError as error:
            self._unsaved = f"the checkpoint {path} could not be written ({error.strerror})"
            self._log(f"hotloop: {self._unsaved}; training goes on")

    # ---- losses

    def _lose(self, lost: _Failed) -> None:
        self._lost_in_a_row += 1
        nodes = [self._nodes[rank] for rank in lost.learners]
        self._avoid |= set(nodes)
        who = " and ".join(f"learner {rank} on node {self._nodes[rank][:6]}" for rank in lost.learners)
        if self._lost_in_a_row >= MAX_LOSSES:
            raise HotloopError(
                f"Lost {who} ({lost.what}), {MAX_LOSSES} times without a new checkpoint; training ends at "
                f"{count(self._saved_at)} env steps."
            )
        self._log(
            f"hotloop: lost {who} after {count(self._env_steps)} env steps ({lost.what}); all learners start "
            f"again from {count(self._saved_at)} env steps"
        )
        self._losses.append(
            Loss(tuple(lost.learners), tuple(nodes), lost.what, self._env_steps, self._saved_at, None)
        )
        self._lost_s = self._lost_s or time.perf_counter()
        self._env_steps = self._saved_at


def _raised(error: Any) -> HotloopError:
    """What a learner has raised, as an error of ours."""
    cause = error.cause
    if isinstance(cause, HotloopError):
        return cause
    return HotloopError(f"A learner failed with {type(cause).__name__}: {first_line(cause)}.")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
