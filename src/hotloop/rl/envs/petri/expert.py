"""An expert that runs the cluster tool without scrap, which proves that the task is solvable.

It never picks a wafer that it cannot place, spaces wafers in s3 so that the single chamber s4 is free when
each is due, and admits the next wafer only if the way to the buffer is clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.cluster_tool import FIRING_S, NAME, ROBOT_OF_HOP, ROUTE
from hotloop.rl.envs.petri.net import Net

# Least time between two wafers that enter s3: 70 s in s4, 10 s for each of the hops out of s3 and s4, and
# some slack for a busy robot.
S3_APART_S = 100


def expert_action(
    net: Net, tokens: Sequence[Sequence[tuple[int, int]]], clock_s: int, mask: Sequence[bool]
) -> int:
    """Return the expert's action in a state of the cluster tool.

    `tokens` is the result of `PetriVectorEnv.tokens_of`, `mask` one row of `action_mask`.
    """
    if net.name != NAME:
        raise HotloopError(
            f"the expert supports only the cluster tool, not net {net.name!r}; use cluster_tool()."
        )
    index = net.place_index
    count = {name: len(tokens[index[name]]) for name in net.place_names}
    moving_to = {
        there: count[f"{robot}:{here}-{there}"]
        for here, there, robot in zip(ROUTE, ROUTE[1:], ROBOT_OF_HOP, strict=False)
    }
    picks = []  # (latest time to pick, action)
    for hop, (here, there) in enumerate(pairwise(ROUTE)):
        pick, place = 2 * hop, 2 * hop + 1
        if mask[place]:
            picks.append((clock_s + FIRING_S, place))  # after picks that cannot wait for it
        room = net.places[index[there]].capacity or 1
        if not mask[pick] or count[there] + moving_to[there] >= room:
            continue
        if here == "LP" and any(count[stage] + moving_to[stage] for stage in ("s1", "s2")):
            continue
        if here == "s2" and any(clock_s - came_s < S3_APART_S for came_s, _ in tokens[index["s3"]]):
            continue
        of = net.places[index[here]]
        latest_s = clock_s + 1000
        if of.residence_s is not None:
            latest_s = tokens[index[here]][0][0] + of.holding_s + of.residence_s
        picks.append((latest_s, pick))
    return min(picks)[1] if picks else net.wait_action
