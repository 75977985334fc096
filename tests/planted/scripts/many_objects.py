"""Defect: experience is kept as small objects; the garbage collector searches them again and again."""

from _pace import turns

from hotloop import profile, progress

kept = []
for turn in turns(30_000):
    with profile("choose"):
        kept.append([{"seen": [turn, i], "move": [i]} for i in range(10)])
    with profile("world"):
        kept.append([{"following": [turn, i], "reward": [0.5]} for i in range(10)])
    with profile("notes"):
        kept.append([{"turn": [turn], "note": [i, i]} for i in range(10)])
    progress(env_steps=1)
