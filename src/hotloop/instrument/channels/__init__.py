"""Channels: whatever threads and processes send messages through, or wait for each other at.

Pipes, queues, sockets, semaphores, locks between processes, barriers, condition variables, pools of workers,
and the ranks of torch.distributed. There are two records of them:

- totals over the whole run, for pipes and queues: how often and how long each was used, how large its
  messages are and how many it holds (`totals.py`). Each has a region, so a message costs no Python code.
  Reports find out from them who waits for whom.
- the last operations of every channel, one by one (`message_log.py`). Each costs about two microseconds.
  What-ifs replay them.

Both know a channel by the key in `identity.py`. `logged_calls.py` wraps a method so that its calls are
logged; `processes.py`, `managers.py`, `sockets.py`, `event_loops.py`, `threads.py`, `pools.py` and
`ranks.py` say which methods, `logged_libraries.py` when.
"""
