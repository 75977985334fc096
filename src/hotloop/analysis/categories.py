"""The category of a region: its explicit argument, else its name, else its parent's category."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from hotloop.capture.model import Node
from hotloop.capture.region_names import FIXED_NAMES

CATEGORIES = (
    "environment",
    "rendering",
    "policy",  # inference while collecting
    "model",  # forward in the learner
    "loss",
    "backward",
    "optimizer",
    "advantage",
    "replay",
    "data",  # loading
    "transfer",  # host to device and back
    "ipc",
    "wait",
    "logging",
    "evaluation",
    "checkpoint",
    "compilation",  # numba, torch.compile, JAX
    "framework",  # inside a library, but none of these
    "other",
    "unattributed",  # in no region at all
    "hotloop",  # our own cost
)

CategoryPatterns = Sequence[tuple[str, str]]  # (prefix or glob, category)

# Words in names that users choose. The first line that has a word of the name wins, so that "policy_loss"
# is loss, "eval_env" is evaluation and "queue_wait" is wait.
WORDS: tuple[tuple[str, str], ...] = (
    ("wait", "wait waiting waits acquire sleep idle barrier recv receive synchronize"),
    ("evaluation", "eval evaluate evaluation validate validation"),
    ("checkpoint", "checkpoint checkpoints ckpt save saving"),
    ("logging", "log logs logger logging tensorboard wandb mlflow metrics"),
    ("backward", "backward backprop"),
    ("optimizer", "optimizer optimiser optim adam sgd"),
    ("loss", "loss losses"),
    ("advantage", "advantage advantages gae"),
    ("rendering", "render renderer rendering draw drawing resize resizing rgb"),
    ("replay", "replay buffer"),
    ("transfer", "transfer h2d d2h"),
    ("ipc", "ipc queue pipe send pickle serialize"),
    ("data", "dataset dataloader loader load disk"),
    ("environment", "env envs environment simulator simulation sim physics vecenv"),
    ("policy", "policy actor act action actions inference predict"),
    ("model", "model forward network net encoder decoder critic conv lstm mlp cnn"),
)
WHOLE_NAMES = {"step": "environment", "reset": "environment", "steps": "environment"}

# A part of a network runs while collecting and while learning: the enclosing region decides.
_NETWORK = {"model", "policy"}

_PREFIXES = tuple((n[:-1], kind) for n, kind in FIXED_NAMES.items() if n.endswith("*"))
_WORD_OF = {word: (rank, kind) for rank, (kind, words) in enumerate(WORDS) for word in words.split()}
_PIECES = re.compile(r"[hd]2[hd]|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True)
class Resolver:
    """Assigns categories to regions; caches names, since few names make up many nodes."""

    patterns: tuple[tuple[str, str], ...] = ()
    _seen: dict[str, tuple[str, bool]] = field(default_factory=dict, repr=False, compare=False)

    def category(self, explicit: str, name: str, parent: str) -> str:
        """Category of a region inside one of category `parent` ("" at the top)."""
        if explicit:
            return explicit
        found = self._seen.get(name)
        if found is None:
            found = self._seen[name] = category_of_name(name, self.patterns)
        kind, follows_parent = found
        if follows_parent and parent in _NETWORK:
            return parent
        return kind or parent or "other"

    def walk(self, root: Node) -> Iterator[tuple[Node, str, int, int]]:
        """Every node below the root, parents first: node, category, its number and its parent's number.

        Nodes are numbered from 1 in that order; the root is 0.
        """
        todo: list[tuple[Node, str, int]] = [(child, "", 0) for child in reversed(root.children)]
        number = 0
        while todo:
            node, above, parent = todo.pop()
            number += 1
            kind = self.category(node.category, node.name, above)
            yield node, kind, number, parent
            todo += [(child, kind, number) for child in reversed(node.children)]


def category_of_name(name: str, patterns: CategoryPatterns = ()) -> tuple[str, bool]:
    """Category of a name, "" for none; and whether an enclosing policy or model overrides it."""
    for pattern, kind in patterns:
        if matches(name, pattern):
            return kind, False
    return _by_its_words(name)


@lru_cache(maxsize=1 << 16)
def _by_its_words(name: str) -> tuple[str, bool]:
    """The built-in patterns: fixed names, then prefixes, then words."""
    lower = name.lower()
    kind = FIXED_NAMES.get(lower, "") or WHOLE_NAMES.get(lower, "")
    if kind:
        return kind, False
    for prefix, kind in _PREFIXES:
        if lower.startswith(prefix):
            return kind, kind in _NETWORK
    # Splits `SnakeEnv.step_wait`, `replay-sample` and `env_step/rgb` into words.
    words = [piece.lower() for piece in _PIECES.findall(name)]
    if "priority" in words:  # a heap is no channel to another process
        words = [word for word in words if word != "queue"]
    found = [_WORD_OF[word] for word in words if word in _WORD_OF]
    if not found:
        return "", False
    kind = min(found)[1]
    return kind, kind in _NETWORK


def matches(name: str, pattern: str) -> bool:
    """Whether a name starts with a prefix, or matches a glob (with *, ? or [)."""
    if any(c in pattern for c in "*?["):
        return fnmatchcase(name, pattern)
    return name.startswith(pattern)


def resolved(root: Node, resolver: Resolver) -> Node:
    """A copy of the tree with every node's category filled in.

    Siblings that become equal (one with an explicit category, one with the same from its name) are merged.
    """
    top = Node(root.name, root.category, root.site)
    top.absorb(root)
    todo = [(root, top, "")]
    while todo:
        old, new, above = todo.pop()
        mine: dict[tuple[str, str], Node] = {(c.name, c.category): c for c in new.children}
        for child in old.children:
            kind = resolver.category(child.category, child.name, above)
            twin = mine.get((child.name, kind))
            if twin is None:
                twin = mine[child.name, kind] = Node(child.name, kind, child.site)
                new.children.append(twin)
            twin.absorb(child)
            todo.append((child, twin, kind))
    return top


def has_twins(root: Node) -> bool:
    """Whether any two siblings share a name, so that `resolved` may have something to merge."""
    todo = [root]
    while todo:
        children = todo.pop().children
        if len(children) > 1 and len({c.name for c in children}) < len(children):
            return True
        todo += children
    return False
