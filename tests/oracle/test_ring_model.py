"""A model of ring.h, explored in every order in which its atomic steps can happen.

Each step is one atomic operation of the C code. Explored are all interleavings of a producer, a consumer and,
where wanted, a kill of the producer at any point, with a successor that goes on. Shown: nobody sleeps for
ever while there is work (no wake-up is lost), every record is read after it was written and before it is
overwritten, in order, once.
A step left out or moved (the mutants below) is caught, so the machine can tell right from wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest


class Side(NamedTuple):
    """A producer (counts records written) or a consumer (records read), and where it stands in the code."""

    step: str = "look"
    seen: int = 0
    done: int = 0


class World(NamedTuple):
    """Everything two processes share: the indices, the cells, and for each side a bell and its sleepers."""

    head: int
    tail: int
    cells: tuple[int, ...]
    bells: tuple[int, int]  # data (the consumer sleeps on it), room (the producer does)
    sleeps: tuple[int, int]
    producer: Side
    consumer: Side
    killed: bool = False


def put(pair: tuple[int, int], at: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if at == 0 else (pair[0], value)


def moves(world: World, who: str, total: int, mutant: str) -> list[World]:
    """What can happen next on one side: no move means it sleeps or has ended."""
    producing = who == "producer"
    side = world.producer if producing else world.consumer
    mine, other = (1, 0) if producing else (0, 1)  # the bell I sleep on, the bell I ring
    capacity = len(world.cells)
    there = capacity - (world.head - world.tail) if producing else world.head - world.tail

    def go(step: str, seen: int | None = None, done: int | None = None, **changes: Any) -> World:
        new = Side(step, side.seen if seen is None else seen, side.done if done is None else done)
        return world._replace(**{who: new}, **changes)  # type: ignore[arg-type]

    match side.step:
        case "look":  # there(ring), and the work if something is there
            if side.done == total:
                return [go("ended")]
            return [go("work" if there > 0 else ("announce" if mutant == "count late" else "count"))]
        case "count":
            following = "sleep" if mutant == "count late" else "announce"
            return [go(following, seen=world.bells[mine])]
        case "announce":
            step = "sleep" if mutant == "no second look" else "again"
            more = 0 if mutant == "no announcement" else 1
            return [go(step, sleeps=put(world.sleeps, mine, world.sleeps[mine] + more))]
        case "again":
            following = "count" if mutant == "count late" else "sleep"
            return [go("leave" if there > 0 else following)]
        case "sleep":  # the futex compares and falls asleep in one step
            return [go("leave" if world.bells[mine] != side.seen else "asleep")]
        case "asleep":  # until it is woken; sleeps end by themselves after 50 ms, which only a kill may need
            return [go("leave")] if world.killed else []
        case "leave":
            less = 0 if mutant == "no announcement" else 1
            return [go("look", sleeps=put(world.sleeps, mine, world.sleeps[mine] - less))]
        case "work" if producing:
            if mutant == "commit first":
                return [go("late write", head=world.head + 1)]
            cells = list(world.cells)
            cells[world.head % capacity] = side.done
            return [go("commit", cells=tuple(cells))]
        case "late write":
            cells = list(world.cells)
            cells[(world.head - 1) % capacity] = side.done
            return [go("ring", done=side.done + 1, cells=tuple(cells))]
        case "commit":
            return [go("ring", done=side.done + 1, head=world.head + 1)]
        case "work":
            assert world.cells[world.tail % capacity] == side.done, "not the record that is due"
            if mutant == "release first":
                return [go("late read", tail=world.tail + 1)]
            return [go("release")]
        case "late read":
            assert world.cells[(world.tail - 1) % capacity] == side.done, "overwritten while it was read"
            return [go("ring", done=side.done + 1)]
        case "release":
            return [go("ring", done=side.done + 1, tail=world.tail + 1)]
        case "ring":  # count the bell, then look whether anybody sleeps
            if mutant == "no bell":
                return [go("look")]
            return [go("wake", bells=put(world.bells, other, world.bells[other] + 1))]
        case "wake":
            sleeper = world.consumer if producing else world.producer
            if world.sleeps[other] and sleeper.step == "asleep":
                return [
                    go(
                        "look",
                        None,
                        None,
                        **{"consumer" if producing else "producer": sleeper._replace(step="leave")},
                    )
                ]
            return [go("look")]
    return []


def explore(capacity: int, total: int, mutant: str = "", kills: bool = False) -> int:
    """Visit every state that can be reached; returns how many there are."""
    start = World(0, 0, (-1,) * capacity, (0, 0), (0, 0), Side(), Side())
    known, waiting = {start}, [start]
    while waiting:
        world = waiting.pop()
        following = [new for who in ("producer", "consumer") for new in moves(world, who, total, mutant)]
        if kills and not world.killed and world.producer.step != "ended":
            # a successor begins where the ring says; what was not handed over is written again
            following.append(world._replace(producer=Side(done=world.head), killed=True))
        if not following:
            ended = world.producer.step == world.consumer.step == "ended"
            assert ended and world.head == world.tail == total, f"asleep for ever: {world}"
        for new in following:
            if new not in known:
                known.add(new)
                waiting.append(new)
    return len(known)


@pytest.mark.parametrize(("capacity", "total"), [(1, 4), (2, 5), (3, 6)])
@pytest.mark.parametrize("kills", [False, True])
def test_no_order_of_steps_loses_a_record_or_a_wake_up(capacity: int, total: int, kills: bool) -> None:
    assert explore(capacity, total, kills=kills) > 300


@pytest.mark.parametrize(
    "mutant", ["no second look", "commit first", "release first", "no bell", "no announcement", "count late"]
)
def test_a_wrong_hand_over_is_caught(mutant: str) -> None:
    with pytest.raises(AssertionError):
        for capacity in (1, 2):
            explore(capacity, 4, mutant)
