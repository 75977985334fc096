"""One rank of a PPO run on a Ray cluster: trains with the others, and tells its driver how far it is.

Loaded on the node, in the actor that `ray_learners.py` starts there. Nothing here needs Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hotloop._util.extras import require_extra
from hotloop.rl.train.ppo import PPOConfig, PPOResult, train
from hotloop.rl.train.ranks import Ranks, join_group, use_interface_of


@dataclass(frozen=True, slots=True)
class News:
    """How far the run is; from the first rank."""

    env_steps: int
    checkpoint: bytes | None  # the newest, if it was not sent before
    saved_at: int  # its env steps


class LearnerRank:
    """Rank `rank` of `size`; `task` is the pickled (config of the whole run, n_envs -> vector env)."""

    def __init__(self, task: bytes, rank: int, size: int):
        cloudpickle = require_extra("cloudpickle", "rl")
        self._config: PPOConfig
        self._config, self._make_envs = cloudpickle.loads(task)
        self._rank, self._size = rank, size
        self._folder = tempfile.TemporaryDirectory(prefix="hotloop-rank-")
        self._checkpoint = Path(self._folder.name) / "checkpoint"
        self._sent: tuple[int, int] | None = None
        self._env_steps = self._saved_at = 0
        self._ranks = Ranks()
        self._stop_by: str | None = None
        self._lock = threading.Lock()
        self._store: Any = None

    def hello(self) -> int:
        """The process id: it is here."""
        return os.getpid()

    def open_store(self, address: str) -> int:
        """The port where the ranks of this run find each other; on the first rank."""
        use_interface_of(address)
        self._store = TCPStore(address, 0, self._size, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def train(self, own: str, address: str, port: int, checkpoint: bytes | None) -> tuple[PPOResult, News]:
        """Train to the end, from the content of a checkpoint if there is one.

        `own` is the address of this node, `address` and `port` are those of the store. Raises RankLost when
        another rank is gone.
        """
        use_interface_of(own)
        if self._store is None and self._size > 1:
            self._store = TCPStore(address, port, self._size, is_master=False)
        if checkpoint is not None:
            self._checkpoint.write_bytes(checkpoint)
        config = dataclasses.replace(
            self._config,
            checkpoint=self._checkpoint,
            resume=checkpoint is not None,
            quiet=True,
            tensorboard_log=self._config.tensorboard_log if self._rank == 0 else None,
        )
        n_envs = len(range(config.n_envs)[Ranks(self._rank, self._size).envs(config.n_envs)])
        with join_group(self._rank, self._size, self._store) as ranks, contextlib.ExitStack() as stack:
            self._ranks = ranks
            ranks.stop_by = self._stop_by
            envs = self._make_envs(n_envs)
            stack.callback(envs.close)
            result = train(config, envs=envs, after_update=self._note, ranks=ranks)
        return result, self.news()

    def _note(self, env_steps: int, _: dict[str, float]) -> None:
        self._env_steps = env_steps

    def news(self) -> News:
        """Called while `train` runs in another thread."""
        content = None
        with self._lock, contextlib.suppress(FileNotFoundError), self._checkpoint.open("rb") as file:
            state = os.fstat(file.fileno())
            if self._rank == 0 and self._sent != (state.st_ino, state.st_mtime_ns):
                content = file.read()
                self._sent = state.st_ino, state.st_mtime_ns
                self._saved_at = saved_env_steps(content)
        return News(self._env_steps, content, self._saved_at)

    def stop(self, by: str) -> None:
        """End training after the current update."""
        self._stop_by = self._ranks.stop_by = by


def saved_env_steps(checkpoint: bytes) -> int:
    """Env steps of a run that a checkpoint holds, from its header."""
    length = int.from_bytes(checkpoint[:8], "little")
    state = json.loads(checkpoint[8 : 8 + length])["__metadata__"]["state"]
    return int(json.loads(state)["env_steps"])
