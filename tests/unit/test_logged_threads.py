"""Logged operations and what they waited for."""

from __future__ import annotations

from hotloop.analysis.logged_threads import LoggedOperation, LoggedThread, match_messages
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.capture.messages import LoggedChannel
from hotloop.testing.captures import make_capture

MS = 1_000_000


def test_a_message_that_has_been_there_for_long_takes_as_long_as_reading_it() -> None:
    """A thread of the sender takes 2 ms to pass a message on; reading one that is there takes 1 ms."""
    process = make_capture({}).processes[0]

    def thread(native: int, kind: int, *times: tuple[int, int]) -> LoggedThread:
        rows = [LoggedOperation(begin * MS, end * MS, 0, kind, 0) for begin, end in times]
        return LoggedThread(0, process, None, native, rows)

    sender = thread(1, SEND, *((moment, moment) for moment in (10, 20, 30, 40)))
    receiver = thread(2, RECEIVE, (5, 12), (15, 22), (31, 32), (60, 61))
    channels = [LoggedChannel("queue x", "queue")]
    match_messages({(1, 1): sender, (1, 2): receiver}, channels, {})
    assert [row.blocked for row in receiver.rows] == [True, True, True, False]
    assert [row.since_sent for row in receiver.rows[:3]] == [2 * MS, 2 * MS, 1 * MS]


def test_how_long_the_first_messages_were_under_way_is_not_known() -> None:
    process = make_capture({}).processes[0]
    sender = LoggedThread(0, process, None, 1, [LoggedOperation(20 * MS, 20 * MS, 0, SEND, 0)])
    rows = [LoggedOperation(5 * MS, 9 * MS, 0, RECEIVE, 0), LoggedOperation(15 * MS, 22 * MS, 0, RECEIVE, 0)]
    receiver = LoggedThread(0, process, None, 2, rows)
    match_messages({(1, 1): sender, (1, 2): receiver}, [LoggedChannel("queue x", "queue")], {0: 1})
    assert [(row.blocked, row.since_sent) for row in rows] == [(True, -1), (True, 2 * MS)]
