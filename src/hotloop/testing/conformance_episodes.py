"""Rules for the ends of episodes: autoreset as declared, separate flags."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from hotloop.testing.conformance_case import Case, ConformanceError, Unchecked
from hotloop.testing.conformance_coverage import End, ends_of, longest_of
from hotloop.testing.trajectories import Moment, row_infos, row_of, same

RULE = "autoreset"


def autoreset(case: Case) -> str:
    """Episodes end as metadata['autoreset_mode'] declares, in every mode."""
    by_hand, ends = 0, 0
    for mode in case.modes():
        with case.env(mode=mode) as env:
            declared, single_space = env.metadata.get("autoreset_mode"), env.single_observation_space
        if declared != mode:
            raise ConformanceError(
                RULE,
                "metadata['autoreset_mode'] is not the requested mode",
                "Set self.metadata = {**self.metadata, 'autoreset_mode': autoreset_mode}.",
                got=declared,
                expected=mode,
            )
        for moments in case.recordings(mode).values():
            ends += _check_form(mode, single_space, moments)
        # One row, reset by hand: needs a mode in which the environment does not reset in the same step.
        if "autoreset_mode" in case.accepts or mode == AutoresetMode.NEXT_STEP:
            hand_mode = AutoresetMode.DISABLED if "autoreset_mode" in case.accepts else mode
            by_hand += _check_by_hand(case, mode, hand_mode)
    if not ends:
        raise Unchecked(
            f"no episode ended in {case.steps} steps; raise `steps`, or pass a `choose` whose actions end one"
        )
    modes = ", ".join(mode.name for mode in case.modes())
    return f"{modes}: {ends} ends of episodes, {by_hand} of them against a reset by hand"


def _check_form(mode: Any, single_space: Any, moments: list[Moment]) -> int:
    """Check what needs no second environment; return the number of finished episodes."""
    pairs = zip(moments[1:], [*moments[2:], None], strict=True)
    for step, (moment, following) in enumerate(pairs, start=1):
        if mode == AutoresetMode.SAME_STEP:
            _check_finals(single_space, moment, step)
        for row in np.flatnonzero(moment.ended).tolist():
            if mode == AutoresetMode.NEXT_STEP and following is not None:
                _check_reset_step(following, row, step + 1)
        if moment.after_reset is not None:
            for row in np.flatnonzero(~moment.ended).tolist():
                _expect(
                    "observation of a row that reset_mask leaves out",
                    row_of(moment.after_reset[0], row),
                    row_of(moment.observations, row),
                    "reset(options={'reset_mask': rows}) must reset the marked rows and no others.",
                    row,
                    step,
                )
    return sum(int(moment.ended.sum()) for moment in moments)


def _check_reset_step(moment: Moment, row: int, step: int) -> None:
    """Check that the step after an end only resets: no reward, no flag."""
    assert moment.rewards is not None
    assert moment.terminated is not None
    assert moment.truncated is not None
    remedy = "With NEXT_STEP the step after an episode's end ignores the action and only resets the row."
    _expect("reward of the step that resets", float(moment.rewards[row]), 0.0, remedy, row, step)
    _expect("terminated in the step that resets", bool(moment.terminated[row]), False, remedy, row, step)
    _expect("truncated in the step that resets", bool(moment.truncated[row]), False, remedy, row, step)


def _check_finals(single_space: Any, moment: Moment, step: int) -> None:
    """SAME_STEP: check that infos have the final observations of exactly the rows that ended."""
    remedy = (
        "With SAME_STEP infos['final_obs'] holds the last observation of each row that ended, "
        "and the mask '_final_obs' says which."
    )
    no_rows = np.zeros_like(moment.ended)
    mask = moment.infos.get("_final_obs", no_rows)
    _expect("infos['_final_obs']", mask, moment.ended, remedy, None, step)
    if "_final_info" in moment.infos:
        _expect("infos['_final_info']", moment.infos["_final_info"], moment.ended, _FINAL_INFO, None, step)
    for row in np.flatnonzero(moment.ended).tolist():
        final = row_of(moment.infos["final_obs"], row)
        if not single_space.contains(final):
            raise ConformanceError(
                RULE,
                "final_obs is not an observation",
                remedy,
                row=row,
                step=step,
                got=final,
                expected=single_space,
            )


def _check_by_hand(case: Case, mode: Any, hand_mode: Any) -> int:
    """Compare one row in `mode` with one that takes the same actions and is reset by hand."""
    ends = 0
    for seed, moments in case.recordings(mode, 1).items():
        with case.env(1, hand_mode) as hand:
            observation, _ = hand.reset(seed=seed)
            _expect("first observation", row_of(moments[0].observations, 0), row_of(observation, 0), "", 0, 0)
            over = False
            for step, moment in enumerate(moments[1:], start=1):
                over, ended = _by_hand_step(case, mode, hand, moment, step, over)
                ends += ended
        case.steps_taken += case.steps
    return ends


def _by_hand_step(
    case: Case, mode: Any, hand: Any, moment: Moment, step: int, over: bool
) -> tuple[bool, int]:
    """Step both; return whether the next step only resets, and the number of finished episodes."""
    seen = row_of(moment.observations, 0)

    def expect_infos(
        what: str, got: dict[str, Any], expected: dict[str, Any], remedy: str, *, of_resets: bool = False
    ) -> None:
        """Compare infos; of resets only those that both sides have: what else one tells is its own affair."""
        one, other = (row_infos(infos, 0, case.ignore_infos) for infos in (got, expected))
        names = one.keys() & other.keys() if of_resets else one.keys() | other.keys()
        if "action_mask" not in one:  # after the last step nothing is allowed or not
            names -= {"action_mask"}
        for name in sorted(names):
            ignore = f" If it is not about the episode, pass ignore_infos=({name!r},)."
            _expect(f"info {name!r} {what}", one.get(name), other.get(name), remedy + ignore, 0, step)

    def expect_fresh(what: str, got: Any, infos: dict[str, Any]) -> None:
        fresh, fresh_infos = hand.reset()
        _expect(f"observation {what}", got, row_of(fresh, 0), _DRAWS, 0, step)
        expect_infos(what, infos, fresh_infos, _DRAWS, of_resets=True)

    if over:  # NEXT_STEP: this step is the reset
        expect_fresh("of the step that resets", seen, moment.infos)
        return False, 0
    stepped, reward, terminated, truncated, stepped_infos = hand.step(moment.actions)
    last, ended = row_of(stepped, 0), bool(terminated[0] or truncated[0])
    _expect("end of the episode", bool(moment.ended[0]), ended, _DRAWS, 0, step)
    for what, got, expected in (
        ("reward", moment.rewards, reward),
        ("terminated", moment.terminated, terminated),
        ("truncated", moment.truncated, truncated),
    ):
        _expect(what, got[0], expected[0], _SAME_IN_ALL_MODES, 0, step)  # type: ignore[index]
    if not ended:
        _expect("observation", seen, last, _DRAWS, 0, step)
        expect_infos("of a step", moment.infos, stepped_infos, _SAME_IN_ALL_MODES)
        return False, 0
    if mode == AutoresetMode.SAME_STEP:
        final = moment.infos
        _expect(
            "final_obs",
            row_of(final["final_obs"], 0),
            last,
            "It is the observation before the reset.",
            0,
            step,
        )
        if "final_info" in final:
            expect_infos("in final_info", final["final_info"], stepped_infos, _FINAL_INFO)
        elif wanted := row_infos(stepped_infos, 0, case.ignore_infos):
            _expect("final_info", None, wanted, _FINAL_INFO, 0, step)
        expect_fresh("after the reset in the same step", seen, moment.infos)
        return False, 1
    _expect("last observation", seen, last, "The last observation comes before the reset.", 0, step)
    expect_infos("of the last step", moment.infos, stepped_infos, _SAME_IN_ALL_MODES)
    if moment.after_reset is not None:
        after, after_infos = moment.after_reset
        expect_fresh("after reset_mask", row_of(after, 0), after_infos)
        return False, 1
    return True, 1


_DRAWS = "An automatic reset must do the same as reset() without a seed, with the same random numbers."
_SAME_IN_ALL_MODES = "A step gives the same rewards, flags and infos however episodes are reset."
_FINAL_INFO = "With SAME_STEP infos['final_info'] holds the infos from before the reset."


def _expect(what: str, got: Any, expected: Any, remedy: str, row: int | None, step: int) -> None:
    if not same(got, expected):
        raise ConformanceError(RULE, what, remedy, row=row, step=step, got=got, expected=expected)


def flags(case: Case) -> str:
    """terminated and truncated are separate arrays with separate meanings."""
    mode = case.modes()[0]
    with case.env(mode=mode) as env:
        env.reset(seed=case.seeds[0])
        actions = case.recordings(mode)[case.seeds[0]][1].actions
        _, _, terminated, truncated, _ = env.step(actions)
        if np.shares_memory(terminated, truncated):
            raise ConformanceError(
                "flags",
                "terminated and truncated share memory",
                "Keep two arrays: a time limit truncates, the rules of the environment terminate.",
            )
    ends = [end for of_mode, moments in case.all_recordings() for end in ends_of(moments, of_mode)]
    ended, both = len(ends), sum(end.terminated and end.truncated for end in ends)
    if ended >= 3 and ended == both:
        raise ConformanceError(
            "flags",
            f"all {ended} finished episodes are both terminated and truncated",
            "Keep the two apart: a time limit sets `truncated` only, the rules `terminated` only.",
        )
    _check_swapped(ends)
    if not ended:
        raise Unchecked(f"no episode ended in {case.steps} steps")
    return f"{ended} ends of episodes, {both} with both flags"


def _check_swapped(ends: list[End]) -> None:
    """A time limit ends episodes at one length, the longest; rules end them at any, also at the limit."""
    terminated = [end.length for end in ends if end.terminated and not end.truncated]
    truncated = [end.length for end in ends if end.truncated and not end.terminated]
    if min(len(terminated), len(truncated)) < 5:
        return
    longest = max(end.length for end in ends)
    shorter = set(truncated) - {longest}
    if set(terminated) == {longest} and len(shorter) >= 3:
        raise ConformanceError(
            "flags",
            f"all {len(terminated)} terminated episodes last {longest} steps, the longest, and "
            f"{len(truncated)} truncated ones {min(truncated)} to {max(truncated)}: the flags look swapped",
            "The rules set `terminated`, a limit `truncated` (if it is meant so, pass skip=('flags',)).",
        )


def time_limit(case: Case) -> str:
    """Episodes that reach max_episode_steps are truncated, and none is longer."""
    limit, is_given = case.max_episode_steps, case.max_episode_steps is not None
    if limit is None:
        with case.env() as env:
            places = (getattr(env, "spec", None), env, getattr(env, "config", None))
            found = [getattr(place, "max_episode_steps", None) for place in places]
        limit = next((int(one) for one in found if isinstance(one, (int, np.integer))), None)
    if limit is None:
        raise Unchecked("the environment has no max_episode_steps; pass it if there is a limit")
    longest = max(longest_of(moments, mode) for mode, moments in case.all_recordings())
    if longest > limit:
        raise ConformanceError(
            "time_limit",
            f"an episode lasts {longest} steps and max_episode_steps is {limit}",
            "Truncate at the limit, and count steps from 0 after each reset.",
        )
    ends = [end for mode, moments in case.all_recordings() for end in ends_of(moments, mode)]
    early = [end.length for end in ends if end.truncated and end.length < limit]
    if is_given and early:
        raise ConformanceError(
            "time_limit",
            f"{len(early)} episodes are truncated after {min(early)} to {max(early)} of {limit} steps",
            "The rules set `terminated`; only the limit sets `truncated` (leave out max_episode_steps if "
            "something else truncates, too).",
        )
    last = [end for end in ends if end.length == limit]
    cut = sum(end.truncated for end in last)
    if len(last) >= 3 and not cut:
        raise ConformanceError(
            "time_limit",
            f"all {len(last)} episodes of exactly max_episode_steps={limit} steps are terminated",
            "A limit sets `truncated`, not `terminated`: learners bootstrap from the last state only then.",
        )
    if not last:
        raise Unchecked(f"no episode lasted {limit} steps; raise `steps`")
    what = f"{len(last)} episodes of {limit} steps, {cut} of them truncated"
    if early:
        what += (
            f"; {len(early)} truncated after {min(early)} to {max(early)} (pass max_episode_steps={limit} if "
            "only the limit should truncate)"
        )
    return what
