"""Layout of the message logs in a capture. Every recorded process loads this, so it must not import numpy."""

from __future__ import annotations

FOLDER = "messages"
MAGIC = b"HLMSGS01"
HEADER_BYTES = 64
RECORDS = 16_384  # in the ring of a process
MOST_CHANNELS = 256  # of a process; further ones are not logged
SEND, RECEIVE, PEEK, MEET, WAKE, WAIT, LATER, FOUND, EMPTY, LOOK = range(10)
"""What an operation does: add a message, take one, wait until there is one, wait for all others (a barrier
or a collective), wake those who wait, wait to be woken, add a message that is there at its end (a timer),
look whether there is one, without waiting, and find one or find none, list a folder."""

RECORD = (
    ("begin_ns", "<i8"),
    ("end_ns", "<i8"),
    ("thread", "<u4"),  # native id
    ("channel", "<u4"),  # index into the channels of this process
    ("kind", "<u4"),
    # operations of this kind on this channel in this process so far, this one included; of a socket: bytes
    ("count", "<u4"),
)
RECORD_BYTES = 32
