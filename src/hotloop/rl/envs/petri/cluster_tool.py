"""The default net: a semiconductor cluster tool with two transport robots.

Wafers go LP -> s1 -> s2 -> s3 -> s4 -> s5 -> done. The front robot R1 serves the load port, s1, s5 and
done; the vacuum robot R2 serves s3; both reach the buffer s2 and the chamber s4 between them, so R1 makes
the hops LP-s1, s1-s2, s4-s5 and s5-done and R2 the hops s2-s3 and s3-s4. Each hop is a pick (the robot
and the wafer become a loaded robot) and a place (the wafer enters the next stage, the robot is free).
"""

from __future__ import annotations

from itertools import pairwise

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.net import Net, Place, Transition

# stage, chambers, processing time in seconds
STAGES = (("s1", 2, 70), ("s2", 1, 0), ("s3", 2, 300), ("s4", 1, 70), ("s5", 2, 70))
ROUTE = ("LP", *(stage for stage, _, _ in STAGES), "done")
ROBOTS = ("R1", "R2")
ROBOT_OF_HOP = ("R1", "R1", "R2", "R2", "R1", "R1")  # hop k leads from ROUTE[k] to ROUTE[k + 1]
RESIDENCE_S = 15
FIRING_S = 5
NAME = "cluster tool"


def cluster_tool(wafers: int = 8, *, residence_s: int = RESIDENCE_S) -> Net:
    """Return the cluster tool with `wafers` wafers in the load port; `residence_s` is for process chambers.

    Places in the order of the route, each stage followed by the loaded robot that leaves it, then the two
    idle robots; transitions `pick_<stage>` and `place_<stage>` hop by hop: 15 places, 12 transitions.
    """
    if isinstance(wafers, bool) or not isinstance(wafers, int) or not 1 <= wafers <= 1000:
        raise HotloopError(f"wafers={wafers!r} is out of range; use a whole number from 1 to 1000.")
    stages = {name: (chambers, time_s) for name, chambers, time_s in STAGES}
    places: list[Place] = []
    transitions: list[Transition] = []
    for hop, (here, there) in enumerate(pairwise(ROUTE)):
        robot = ROBOT_OF_HOP[hop]
        held = f"{robot}:{here}-{there}"
        if here == "LP":
            places.append(Place("LP", tokens=wafers, capacity=wafers, kind="source"))
        else:
            chambers, time_s = stages[here]
            places.append(
                Place(
                    here,
                    capacity=chambers,
                    holding_s=time_s,
                    residence_s=residence_s if time_s else None,
                    kind="process" if time_s else "buffer",
                )
            )
        places.append(Place(held, capacity=1, kind="transport"))
        transitions.append(Transition(f"pick_{here}", [here, robot], [held], FIRING_S))
        transitions.append(Transition(f"place_{there}", [held], [there, robot], FIRING_S))
    places.append(Place("done", capacity=wafers, kind="sink", goal=wafers))
    places += [Place(robot, tokens=1, capacity=1, kind="resource") for robot in ROBOTS]
    return Net(NAME, tuple(places), tuple(transitions), wait_s=FIRING_S)
