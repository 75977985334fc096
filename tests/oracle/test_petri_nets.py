"""Random nets of all shapes behave the same on the compiled path, on the plain path and in the rules."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.env import PetriVectorEnv
from hotloop.rl.envs.petri.net import KINDS, Net, Place, Transition
from hotloop.rl.envs.petri.rules import PetriRules


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Small nets with all kinds of arcs, capacities, times, limits, goals, kinds; many die, some grow."""

    def maybe(least: int, most: int) -> int | None:
        return draw(st.none() | st.integers(least, most))

    places = []
    for index in range(draw(st.integers(1, 5))):
        capacity = maybe(1, 4)
        most = 3 if capacity is None else capacity
        places.append(
            Place(
                f"p{index}",
                tokens=draw(st.integers(0, most)),
                capacity=capacity,
                holding_s=draw(st.sampled_from((0, 0, 1, 3))),
                residence_s=draw(st.sampled_from((None, None, 0, 2, 5))),
                kind=draw(st.sampled_from(KINDS)),
                goal=draw(st.integers(0, most)) if draw(st.integers(0, 4)) == 0 else 0,
            )
        )
    names = [place.name for place in places]
    arcs = st.dictionaries(st.sampled_from(names), st.integers(1, 2), max_size=3)
    no_arcs: st.SearchStrategy[dict[str, int]] = st.just({})
    few_arcs = st.one_of(no_arcs, no_arcs, arcs)
    transitions = tuple(
        Transition(
            f"t{index}",
            draw(arcs),
            draw(arcs),
            firing_s=draw(st.integers(0, 2)),
            inhibited_by=draw(few_arcs),
            resets=draw(few_arcs),
        )
        for index in range(draw(st.integers(1, 5)))
    )
    return Net("made up", tuple(places), transitions, wait_s=maybe(1, 3))


configs = st.builds(
    PetriConfig,
    time_limit_s=st.sampled_from((7, 40)),
    max_steps=st.sampled_from((5, 30)),
    token_slots=st.none() | st.integers(1, 6),
    token_limit=st.integers(3, 8),
    horizon_s=st.sampled_from((1, 7)),
    processing_reward=st.floats(-2, 2),
    overtime_penalty_per_s=st.floats(0, 1),
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(net=nets(), config=configs, rows=st.integers(1, 3), seed=st.integers(0, 1000))
def test_nets_of_all_shapes_do_the_same_in_all_three(
    net: Net, config: PetriConfig, rows: int, seed: int
) -> None:
    envs = [PetriVectorEnv(rows, net=net, config=config, turbo=turbo) for turbo in (True, False)]
    twins = [PetriRules(net, config) for _ in range(rows)]
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed) for env in envs]
    expected = [twin.reset() for twin in twins]
    assume(not twins[0].is_dead and any(twins[0].enabled))  # resets do not look for a dead net
    for step in range(40):
        for observations, infos in seen:
            for row, (observation, info) in enumerate(expected):
                assert np.array_equal(observations[row], observation), (step, row)
                for name, value in info.items():
                    assert np.array_equal(infos[name][row], value), (step, row, name)
        # mostly what is enabled, now and then anything
        masks = seen[0][1]["action_mask"] | (rng.random((rows, 1)) < 0.1)
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        results = [env.step(actions) for env in envs]
        seen = [(result[0], result[4]) for result in results]
        expected = []
        for row, twin in enumerate(twins):
            if twin.is_over:
                expected.append(twin.reset())
                flags: tuple[float, ...] = (0.0, False, False)
            else:
                observation, *rest, info = twin.step(int(actions[row]))
                flags = tuple(rest)
                expected.append((observation, info))
            for result in results:
                assert tuple(values[row] for values in result[1:4]) == flags, (step, row)
            for env in envs:
                assert env.tokens_of(row) == twin.queues
