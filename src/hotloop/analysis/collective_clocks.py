"""How far apart the clocks of two computers are, from collectives that their ranks ran together.

Nobody leaves an all-reduce or a barrier before everyone has entered it. With both clocks, each collective
bounds the offset from both sides, and many of them leave a small interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.capture.message_format import MEET
from hotloop.capture.messages import MessageLog

LEAST_MEETINGS = 3


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the second clock is ahead of the first."""

    at_ns: int  # on the first clock
    offset_ns: int
    uncertainty_ns: int
    meetings: int  # collectives that bound it


def offset_between(here: Sequence[MessageLog], there: Sequence[MessageLog]) -> Offset | None:
    """The offset between the clocks of two computers, from the logs of their processes.

    None if their ranks met too seldom, or if no offset agrees with all meetings: in a broadcast the source
    leaves early, and logs do not tell it from an all-reduce.
    """
    lowest, highest, at_ns, count = -(2**62), 2**62, 0, 0
    for mine in here:
        ours = _meetings(mine)
        for log in there:
            theirs = _meetings(log)
            for key in ours.keys() & theirs.keys():
                (begin, end), (their_begin, their_end) = ours[key], theirs[key]
                lowest = max(lowest, their_begin - end)
                highest = min(highest, their_end - begin)
                at_ns = max(at_ns, end)
                count += 1
    if count < LEAST_MEETINGS or lowest > highest:
        return None
    return Offset(at_ns, (lowest + highest) // 2, (highest - lowest + 1) // 2, count)


def _meetings(log: MessageLog) -> dict[tuple[str, int], tuple[int, int]]:
    """Collectives of one rank by channel and number: when it entered, when it left."""
    keys = {
        number: channel.key for number, channel in enumerate(log.channels) if channel.kind == "collective"
    }
    found = {}
    for row in log.records[log.records["kind"] == MEET]:
        key = keys.get(int(row["channel"]))
        if key is not None:
            found[key, int(row["count"])] = (int(row["begin_ns"]), int(row["end_ns"]))
    return found
