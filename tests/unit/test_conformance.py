"""The conformance kit passes what is right and catches, for every rule, an environment that breaks it."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv as GymnasiumCartPole
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from hotloop._util.errors import HotloopError
from hotloop.testing.conformance import RULES, ConformanceError, Wanted, check_vector_env
from hotloop.testing.trajectories import random_actions

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class Dice:
    """The obvious twin: dice added up; the rules end it at 20, time at 8 throws; action 1 counts double."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.total, self.throws, self.limit = 0.0, 0, 8

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.total, self.throws = 1 + int(self.rng.random() * 6), 0
        return self.observation(), {"throws": 0}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        pips = 1 + int(self.rng.random() * 6)
        self.total += pips * (2 if action else 1)
        self.throws += 1
        return (
            self.observation(),
            float(pips),
            self.total >= 20,
            self.throws >= self.limit,
            {"throws": self.throws},
        )

    def observation(self) -> Any:
        return np.array([self.total, self.throws], dtype=np.float32)


class DiceVectorEnv(VectorEnv):
    """Rows of `Dice`, one after the other. `fault` names the one thing that is wrong with it."""

    fault = ""

    def __init__(
        self,
        num_envs: int,
        autoreset_mode: AutoresetMode = NEXT,
        copy: bool = True,
        num_threads: int = 1,
    ):
        self.num_envs = num_envs
        self.mode = autoreset_mode
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space = Box(0, 100, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = Discrete(2)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.copy, self.num_threads = copy, num_threads
        self.rows = [Dice(0) for _ in range(num_envs)]
        self.over = np.zeros(num_envs, dtype=bool)
        self.seen = np.zeros((num_envs, 2), dtype=np.float32)
        self.rewards = np.zeros(num_envs)
        self.seed = 0

    def seed_rows(self, seed: int) -> None:
        for row, dice in enumerate(self.rows):
            dice.rng = np.random.default_rng(seed + row)

    def rows_to_reset(self, options: dict[str, Any] | None) -> Any:
        return (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.seed_rows(seed)
        throws = np.zeros(self.num_envs, dtype=int)
        marked = self.rows_to_reset(options)
        for row in np.flatnonzero(marked):
            self.seen[row], _ = self.rows[row].reset()
        self.over[marked] = False
        return self.handed(self.seen), {"throws": throws, "_throws": marked.copy()}

    def handed(self, array: Any) -> Any:
        return array.copy() if self.copy else array

    def step(self, actions: Any) -> Any:
        n = self.num_envs
        terminated, truncated = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        throws, final_throws = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
        final = np.full(n, None, dtype=object)
        for row, dice in enumerate(self.rows):
            if self.over[row]:
                self.seen[row], _ = dice.reset()
                self.rewards[row], self.over[row] = 0.0, False
                continue
            self.seen[row], self.rewards[row], terminated[row], truncated[row], _ = dice.step(actions[row])
            throws[row] = dice.throws
            if terminated[row] or truncated[row]:
                final[row], final_throws[row] = self.last(row)
                if self.mode == SAME:
                    self.seen[row], _ = dice.reset()
                    throws[row] = 0
                self.over[row] = self.mode != SAME
        ended = terminated | truncated
        infos: dict[str, Any] = {"throws": throws, "_throws": np.ones(n, dtype=bool)}
        if self.mode == SAME and ended.any():
            infos |= {"final_obs": final, "_final_obs": ended, "_final_info": ended}
            infos["final_info"] = {"throws": final_throws, "_throws": ended.copy()}
        return self.handed(self.seen), self.handed(self.rewards), terminated, truncated, infos

    def last(self, row: int) -> tuple[Any, int]:
        return self.seen[row].copy(), self.rows[row].throws


def check(make: Any, **options: Any) -> Any:
    return check_vector_env(make, **{"steps": 60, "num_envs": 3, **options})


# ---- what is right passes


def test_a_correct_environment_passes_every_rule() -> None:
    report = check(Saved, make_twin=Dice)
    assert set(report.checked) == set(RULES) - {"time_limit"}
    assert report.not_checked == {
        "time_limit": "the environment has no max_episode_steps; pass it if there is a limit"
    }
    assert report.episodes > 100
    shown = str(report).splitlines()
    assert shown[0] == f"Saved(num_envs=3): {report.steps} steps, {report.episodes} episodes ended"
    assert shown[1].startswith(f"  visited      {report.coverage.observations} different observations; ")
    assert "; episodes of 2 to " in shown[1]
    assert shown[1].endswith("2 of 2 actions")
    assert "  ok           spaces: 6 plays of 60 steps, rewards float64" in shown


@pytest.mark.long
def test_gymnasiums_own_vector_environments_pass() -> None:
    def make_one() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1")

    def sync(num_envs: int, autoreset_mode: AutoresetMode = NEXT, copy: bool = True) -> Any:
        return SyncVectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode, copy=copy)

    def over_processes(num_envs: int, autoreset_mode: AutoresetMode = NEXT) -> Any:
        return AsyncVectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode)

    assert set(check(sync, make_twin=lambda seed: make_one()).not_checked) == {
        "threads",
        "copies",
        "saved_state",
        "time_limit",
    }
    report = check(over_processes, num_envs=2, steps=40)
    rarely = {"no_copies", "threads", "copies", "saved_state", "twin", "time_limit"}
    assert set(report.not_checked) == rarely
    report = check(
        lambda num_envs: GymnasiumCartPole(num_envs), skip=("batch_size",)
    )  # rows share a generator
    assert set(report.not_checked) == rarely | {"batch_size", "reset_mask"}
    assert report.not_checked["batch_size"] == "skipped, as asked"


class Pair(gymnasium.Env):
    """Observations in a dict."""

    observation_space = Dict({"a": Box(0, 1, (2,), np.float64), "b": Discrete(7)})
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.now(), {}

    def step(self, action: int) -> Any:
        return self.now(), 1.0, bool(self.np_random.random() < 0.1), False, {"note": "hello"}

    def now(self) -> Any:
        return {"a": self.np_random.random(2), "b": self.np_random.integers(7)}


def test_observations_may_be_dicts() -> None:
    def make(num_envs: int, autoreset_mode: AutoresetMode = NEXT) -> Any:
        return SyncVectorEnv([Pair] * num_envs, autoreset_mode=autoreset_mode)

    report = check(make, make_twin=lambda seed: Pair())
    assert set(report.not_checked) == {"no_copies", "threads", "copies", "saved_state", "time_limit"}


def test_actions_stay_within_the_mask() -> None:
    class Masked(DiceVectorEnv):
        def step(self, actions: Any) -> Any:
            assert (actions == 1).all()
            *outcome, infos = super().step(actions)
            return *outcome, infos | self.mask()

        def reset(self, **options: Any) -> Any:
            observations, infos = super().reset(**options)
            return observations, infos | self.mask()

        def mask(self) -> dict[str, Any]:
            return {"action_mask": np.tile([False, True], (self.num_envs, 1))}

    check(Masked)


# ---- what is wrong is caught


class DoubleObservations(DiceVectorEnv):
    def handed(self, array: Any) -> Any:
        return array.astype(np.float64)


class TallRewards(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, rewards[:, None], *rest


class SinglePrecisionRewards(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, rewards.astype(np.float32), *rest


class ChangingRewards(DiceVectorEnv):
    """Declares nothing, and the type depends on the mode."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
        super().__init__(num_envs, autoreset_mode)
        self.paid: Any = self.rewards
        self.rewards: Any = None

    def step(self, actions: Any) -> Any:
        self.rewards = self.paid
        seen, rewards, *rest = super().step(actions)
        self.rewards = None
        return seen, rewards.astype(np.float32 if self.mode == SAME else np.float64), *rest


class WholeFlags(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, *rest = super().step(actions)
        return seen, rewards, terminated.astype(int), *rest


class TightSpace(DiceVectorEnv):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.single_observation_space = Box(0, 5, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)


class OtherActionSpace(DiceVectorEnv):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.action_space = Discrete(2)


class ShortMask(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"_throws": np.ones(1, dtype=bool)}


class OwnRandomness(DiceVectorEnv):
    def seed_rows(self, seed: int) -> None:
        for dice in self.rows:
            dice.rng = np.random.default_rng()


class Remembering(DiceVectorEnv):
    """A reset with a seed keeps something of the play before it."""

    plays = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.plays += not options
        return super().reset(seed=None if seed is None else seed + self.plays, options=options)


class Deaf(DiceVectorEnv):
    def seed_rows(self, seed: int) -> None:
        super().seed_rows(0)


class Forgetful(DiceVectorEnv):
    """reset() without a seed takes a new seed from the system."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        fresh = None if options else int(np.random.default_rng().integers(2**32))
        return super().reset(seed=fresh if seed is None else seed, options=options)


class Repeating(DiceVectorEnv):
    """reset() without a seed begins again with the last seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = self.seed if seed is None else seed
        return super().reset(seed=None if options else self.seed, options=options)


class Shared(DiceVectorEnv):
    def seed_rows(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for dice in self.rows:
            dice.rng = rng


class Silent(DiceVectorEnv):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.metadata = {}


class AlwaysNextStep(DiceVectorEnv):
    """Takes a mode, and says it does another."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
        super().__init__(num_envs)


class Impatient(DiceVectorEnv):
    """Says NEXT_STEP and resets in the same step."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs, SAME)
        self.metadata = {"autoreset_mode": NEXT}


class PaidReset(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        resets = self.over.copy()
        seen, rewards, *rest = super().step(actions)
        return seen, np.where(resets, 1.0, rewards), *rest


class OtherReset(DiceVectorEnv):
    """The environment's own reset draws more than reset() does."""

    def step(self, actions: Any) -> Any:
        for row in np.flatnonzero(self.over):
            self.rows[row].rng.random()
        return super().step(actions)


class NoFinals(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, {name: value for name, value in infos.items() if "final" not in name}


class LateFinals(DiceVectorEnv):
    """final_obs is what comes after the reset."""

    def step(self, actions: Any) -> Any:
        seen, *outcome, infos = super().step(actions)
        if "final_obs" in infos:
            for row in np.flatnonzero(infos["_final_obs"]):
                infos["final_obs"][row] = seen[row].copy()
        return seen, *outcome, infos


class GreedyMask(DiceVectorEnv):
    def rows_to_reset(self, options: dict[str, Any] | None) -> Any:
        return np.ones(self.num_envs, dtype=bool)


class Folded(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, terminated | truncated, terminated | truncated, infos


class Short(DiceVectorEnv):
    """Truncated after five throws."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
        super().__init__(num_envs, autoreset_mode)
        for dice in self.rows:
            dice.limit = 5


class Swapped(Short):
    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, truncated, terminated, infos


class SwappedAlsoAtTheLimit(Short):
    """Rules end some episodes in the very step of the limit; only one flag is set then."""

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, truncated & ~terminated, terminated, infos


class RulesReportedAsLimit(Short):
    max_episode_steps = 5

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, np.zeros_like(terminated), terminated | truncated, infos


class RewardsWithoutValue(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, np.where(rewards == 6, np.nan, rewards), *rest


class OnlyTerminated(Short):
    """Reports the limit as an end by the rules."""

    max_episode_steps = 5

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, terminated | truncated, np.zeros_like(truncated), infos


class LateLimit(Short):
    max_episode_steps = 3


class CountsOn(DiceVectorEnv):
    """reset_mask does not reset the number of throws."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        throws = [dice.throws for dice in self.rows]
        outcome = super().reset(seed=seed, options=options)
        for dice, before in zip(self.rows, throws, strict=True):
            dice.throws = before // 2 if options else 0
        return outcome


class OneFlag(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, _, infos = super().step(actions)
        return seen, rewards, terminated, terminated, infos


class Overwriting(DiceVectorEnv):
    def handed(self, array: Any) -> Any:
        return array


class OverwritingFinals(DiceVectorEnv):
    """The last observations are views of an array that is used again."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
        super().__init__(num_envs, autoreset_mode)
        self.finals = np.zeros((num_envs, 2), dtype=np.float32)

    def last(self, row: int) -> tuple[Any, int]:
        self.finals[row] = self.seen[row]
        return self.finals[row], self.rows[row].throws


class Scribbling(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        outcome = super().step(actions)
        actions[:] = 0
        return outcome


class Trusting(DiceVectorEnv):
    """Goes on from the observation it handed out, whatever the caller did to it."""

    mine: Any = None

    def reset(self, **options: Any) -> Any:
        self.mine, infos = super().reset(**options)
        return self.mine, infos

    def step(self, actions: Any) -> Any:
        for row, dice in enumerate(self.rows):
            dice.total = float(self.mine[row, 0])
        self.mine, *rest = super().step(actions)
        return self.mine, *rest


class OtherWithoutCopies(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, rewards if self.copy else rewards + 1, *rest


class ThreadsThatMatter(DiceVectorEnv):
    def seed_rows(self, seed: int) -> None:
        super().seed_rows(seed + self.num_threads)


class TornCopy(DiceVectorEnv):
    """Rewards are a view of an array, which a deep copy does not know."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.block = np.zeros((2, num_envs))
        self.rewards = self.block[0]

    def handed(self, array: Any) -> Any:
        return (self.block[0] if array is self.rewards else array).copy()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class HalfSaved(DiceVectorEnv):
    """Does not save how far its generators are."""

    def save_state(self) -> Any:
        saved = [(dice.total, dice.throws) for dice in self.rows], self.over.copy(), self.seen.copy()
        return saved if self.fault else (*saved, [dice.rng.bit_generator.state for dice in self.rows])

    def load_state(self, state: Any) -> None:
        totals, self.over, self.seen, *generators = deepcopy(state)
        for row, (dice, (total, throws)) in enumerate(zip(self.rows, totals, strict=True)):
            dice.total, dice.throws = total, throws
            if generators:
                dice.rng.bit_generator.state = generators[0][row]

    fault = "generators"


class Saved(HalfSaved):
    fault = ""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class NearlyRight(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, np.nextafter(rewards, np.inf) * (rewards != 0), *rest


class OtherInfos(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"throws": infos["throws"] + 1}


class BoundlessRewards(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, np.where(rewards == 6, -np.inf, rewards), *rest


class InfosOfSomeRows(DiceVectorEnv):
    """Tells the infos of a row fewer."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"throws": infos["throws"][1:]}


class OneInfoForAll(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"rules": {"dice": 1}}


class StillOver(DiceVectorEnv):
    """reset() leaves the rows marked whose episode has ended, so the next step resets them again."""

    def reset(self, **options: Any) -> Any:
        over = self.over.copy()
        outcome = super().reset(**options)
        self.over = over & (self.mode == NEXT)
        return outcome


class LostRewards(DiceVectorEnv):
    """The reset in the same step clears the reward of the step."""

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        ended = (terminated | truncated) & (self.mode == SAME)
        return seen, np.where(ended, 0.0, rewards), terminated, truncated, infos


class OtherFlagsInTheSameStep(Short):
    """Rightly apart, but for SAME_STEP, where every end is one by the rules."""

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        if self.mode == SAME:
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        return seen, rewards, terminated, truncated, infos


class StaleInfos(DiceVectorEnv):
    """The step that resets tells the info of the episode before."""

    def step(self, actions: Any) -> Any:
        throws = np.array([dice.throws for dice in self.rows])
        resets = self.over.copy()
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"throws": np.where(resets, throws, infos["throws"])}


class LateFinalInfos(DiceVectorEnv):
    """final_info is what comes after the reset."""

    def last(self, row: int) -> tuple[Any, int]:
        return self.seen[row].copy(), 0


class NoFinalInfos(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, {name: value for name, value in infos.items() if "final_info" not in name}


class ForgetsWhatIsOver(Saved):
    """Neither saves nor copies which rows wait for their reset."""

    def save_state(self) -> Any:
        totals, over, *rest = super().save_state()
        return totals, np.zeros_like(over), *rest

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"over": np.zeros_like(self.over)}


class RowsOfTheClass(DiceVectorEnv):
    """All instances share their rows."""

    shared: ClassVar[dict[int, Dice]] = {}

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
        super().__init__(num_envs, autoreset_mode)
        self.rows = [self.shared.setdefault(row, Dice(0)) for row in range(num_envs)]


class KeepsCountMidway(DiceVectorEnv):
    """reset_mask (`of_masks`), or reset() without a seed, keeps the count of an unfinished episode."""

    of_masks = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        before, over = [dice.throws for dice in self.rows], self.over.copy()
        marked = self.rows_to_reset(options)
        outcome = super().reset(seed=seed, options=options)
        if seed is None and bool(options) == self.of_masks:
            for row in np.flatnonzero(marked & ~over):
                self.rows[row].throws = before[row]
        return outcome


class KeepsCountWithoutSeed(KeepsCountMidway):
    of_masks = False


class KeepsCountAlways(KeepsCountMidway):
    """Alike with and without a mask, so that only the twin knows."""

    @property
    def of_masks(self) -> bool:  # type: ignore[override]
        return self.asked

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.asked = bool(options)
        return super().reset(seed=seed, options=options)


class DropsTheLastRows(DiceVectorEnv):
    """Slices of equal size leave out what remains."""

    def step(self, actions: Any) -> Any:
        whole = self.num_envs // min(self.num_threads, self.num_envs) * min(self.num_threads, self.num_envs)
        return super().step(np.where(np.arange(self.num_envs) < whole, actions, 0))


class IdleThreads(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        return super().step(actions if self.num_threads <= self.num_envs else np.zeros_like(actions))


class ListFilledAgain(DiceVectorEnv):
    """An info is a list that the next step fills again."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        self.filled = getattr(self, "filled", [0] * self.num_envs)
        self.filled[:] = infos["throws"].tolist()
        return *outcome, infos | {"listed": self.filled}


class OneDictOfInfos(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        self.told: dict[str, Any] = getattr(self, "told", {})
        self.told.clear()
        self.told.update(infos)
        return *outcome, self.told


class ScribblingOnTheMask(DiceVectorEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        outcome = super().reset(seed=seed, options=options)
        if options:
            options["reset_mask"][:] = False
        return outcome


class KeepsActions(DiceVectorEnv):
    """Takes the actions of the step before from the caller's array."""

    kept: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.kept = self.kept if options else None
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        now = np.zeros(self.num_envs, dtype=int) if self.kept is None else np.array(self.kept)
        self.kept = actions
        return super().step(now)


class ShortFinalInfos(DiceVectorEnv):
    """final_info lacks one of two infos."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"dice": np.ones(self.num_envs, dtype=int)}


class SilentInTheSameStep(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos if self.mode == SAME else infos | {"dice": np.ones(self.num_envs, dtype=int)}


class FinalInfosOfAll(DiceVectorEnv):
    """Says that every row has a last info."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        if "final_info" in infos:
            infos["_final_info"] = np.ones(self.num_envs, dtype=bool)
        return *outcome, infos


class SqueezedAlone(DiceVectorEnv):
    def handed(self, array: Any) -> Any:
        handed = super().handed(array)
        return handed[0] if self.num_envs == 1 and handed.ndim == 2 else handed


class FirstSeedOfTheList(DiceVectorEnv):
    def seed_rows(self, seed: Any) -> None:
        super().seed_rows(seed[0] if isinstance(seed, list) else seed)


class OtherWithOptions(DiceVectorEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=5 if options == {} else seed, options=options)


class NothingAllowed(DiceVectorEnv):
    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        return *outcome, infos | {"action_mask": np.zeros((self.num_envs, 2), dtype=bool)}


BROKEN: list[tuple[str, Any, str]] = [
    ("instances", RowsOfTheClass, "keep arrays and generators in the instance"),
    ("reset_mask", KeepsCountMidway, "also in the middle of an episode"),
    ("reset_mask", KeepsCountWithoutSeed, "also in the middle of an episode"),
    ("twin", KeepsCountAlways, "observation: got"),
    ("threads", DropsTheLastRows, "num_threads=2 must give the same"),
    ("threads", IdleThreads, "num_threads=4 must give the same"),
    ("aliasing", ListFilledAgain, r"infos\['listed'\] was overwritten"),
    ("aliasing", OneDictOfInfos, "was overwritten"),
    ("aliasing", ScribblingOnTheMask, "Copy the mask"),
    ("aliasing", KeepsActions, "copy what a later step needs"),
    ("autoreset", ShortFinalInfos, r"info 'dice' in final_info: got None, expected 1"),
    ("autoreset", SilentInTheSameStep, "info 'dice' of a step: got None, expected 1"),
    ("autoreset", FinalInfosOfAll, r"infos\['_final_info'\]"),
    ("spaces", SqueezedAlone, r"shape of observations: got \(2,\), expected \(1, 2\)"),
    ("spaces", NothingAllowed, "action_mask allows no action and the episode goes on"),
    ("batch_size", FirstSeedOfTheList, "must seed each row with its own number"),
    ("same_seed", OtherWithOptions, r"options=\{\}\) must do what"),
    ("spaces", DoubleObservations, "type of observations"),
    ("spaces", TallRewards, "shape of rewards"),
    ("spaces", SinglePrecisionRewards, "type of rewards: got dtype"),
    ("spaces", ChangingRewards, "type of rewards: got dtype"),
    ("spaces", RewardsWithoutValue, r"the reward is not a number\. Look for a division by 0"),
    ("spaces", BoundlessRewards, r"the reward is infinite\. Look for a division by 0"),
    ("spaces", InfosOfSomeRows, r"length of infos\['throws'\]: got 2, expected 3"),
    ("spaces", OneInfoForAll, r"length of infos\['rules'\]\['dice'\]: got 'no rows', expected 3"),
    ("spaces", WholeFlags, "terminated"),
    ("spaces", TightSpace, "observations are not in observation_space"),
    ("spaces", OtherActionSpace, "action_space"),
    ("spaces", ShortMask, r"infos\['_throws'\]"),
    ("same_seed", OwnRandomness, "draw random numbers from the seeded generator only"),
    ("same_seed", Remembering, "forget the previous episode"),
    ("same_seed", StillOver, "forget the previous episode"),
    ("different_seeds", Deaf, "seeds 0 and 1000 give the same results"),
    ("stream_continues", Forgetful, "not create one"),
    ("stream_continues", Repeating, "repeats the results"),
    ("batch_size", Shared, "give each row a generator"),
    ("reset_mask", GreedyMask, "and nothing to the others"),
    ("reset_mask", CountsOn, "what reset.. does to a single one"),
    ("autoreset", Silent, "is missing or invalid"),
    ("autoreset", AlwaysNextStep, "is not the requested mode"),
    ("autoreset", Impatient, "reward of the step that resets"),
    ("autoreset", PaidReset, "reward of the step that resets"),
    ("autoreset", OtherReset, "must do the same as reset"),
    ("autoreset", NoFinals, "final_obs"),
    ("autoreset", LateFinals, "observation before the reset"),
    ("autoreset", LostRewards, "reward: got 0.0, expected .* however episodes are reset"),
    ("autoreset", OtherFlagsInTheSameStep, "(terminated: got True|truncated: got False), expected"),
    ("autoreset", StaleInfos, r"info 'throws' of the step that resets: got \d, expected 0"),
    ("autoreset", LateFinalInfos, r"info 'throws' in final_info: got 0, expected \d"),
    ("autoreset", NoFinalInfos, "final_info: got None, expected {'throws': .* from before the reset"),
    ("autoreset", GreedyMask, "reset_mask leaves out"),
    ("flags", Folded, "both terminated and truncated"),
    ("flags", OneFlag, "share memory"),
    ("flags", Swapped, "terminated episodes last 5 steps, the longest, .* the flags look swapped"),
    ("flags", SwappedAlsoAtTheLimit, "terminated episodes last 5 steps, the longest, .* look swapped"),
    ("time_limit", OnlyTerminated, "episodes of exactly max_episode_steps=5 steps are terminated"),
    ("time_limit", LateLimit, "an episode lasts 5 steps and max_episode_steps is 3"),
    ("aliasing", Overwriting, "was overwritten"),
    ("aliasing", OverwritingFinals, r"final_obs'\]\[\d\] was overwritten"),
    ("aliasing", Scribbling, "Copy the actions"),
    ("aliasing", Trusting, "Writing to returned arrays changed later results"),
    ("no_copies", OtherWithoutCopies, "copy=False must return the same numbers"),
    ("threads", ThreadsThatMatter, "must give the same results as one thread"),
    ("copies", TornCopy, "rewards"),
    ("copies", ForgetsWhatIsOver, "observation"),
    ("saved_state", ForgetsWhatIsOver, "every array that affects"),
    ("saved_state", HalfSaved, "every array that affects"),
    ("twin", NearlyRight, "reward"),
    ("twin", OtherInfos, "info"),
]


def test_every_rule_has_an_environment_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_environment_is_caught_by_its_rule(rule: str) -> None:
    for of_rule, broken, words in BROKEN:
        if of_rule == rule:
            # Only this rule, so that no other one catches it first.
            others = tuple(name for name in RULES if name != rule)
            with pytest.raises(ConformanceError, match=words) as caught:
                check(broken, make_twin=Dice, skip=() if rule == "stream_continues" else others)
            assert caught.value.rule == rule, broken


def test_the_error_says_where_what_and_what_to_do() -> None:
    with pytest.raises(ConformanceError) as caught:
        check(Shared, skip=("same_seed", "spaces"))
    error = caught.value
    assert (error.rule, error.row, error.what) == ("batch_size", 0, "observation")
    assert error.step == 1
    assert str(error) == (
        "rule 'batch_size' is broken, row 0, step 1: observation: got [5., 1.], expected [6., 1.]. "
        "A row may depend on its own seed and actions only: give each row a generator seeded with seed + row "
        "(or pass skip=('batch_size',) if they share one by design)."
    )


def test_rules_that_cannot_be_checked_are_reported() -> None:
    report = check(DiceVectorEnv, steps=2, choose=lambda env, infos, rng: np.zeros(env.num_envs, dtype=int))
    assert report.not_checked["autoreset"].startswith("no episode ended in 2 steps; raise `steps`")
    assert report.not_checked["flags"] == "no episode ended in 2 steps"
    assert report.not_checked["twin"] == "make_twin was not passed"
    assert "not checked  twin: make_twin was not passed" in str(report)
    assert check(DiceVectorEnv, seeds=(3,)).not_checked["different_seeds"] == "this needs at least two seeds"


def test_faults_of_reset_mask_are_not_blamed_on_the_batch_size() -> None:
    for broken in (GreedyMask, CountsOn):
        with pytest.raises(ConformanceError) as caught:
            check(broken, make_twin=Dice)
        assert caught.value.rule == "reset_mask"


def test_a_declared_limit_is_the_only_reason_to_truncate() -> None:
    with pytest.raises(ConformanceError, match=r"episodes are truncated after \d to 4 of 5 steps") as caught:
        check(Swapped, max_episode_steps=5, skip=("flags",))
    assert caught.value.rule == "time_limit"
    assert check(Short, max_episode_steps=5).checked["time_limit"].endswith("of them truncated")


def test_early_truncations_are_said_where_the_environment_has_a_limit() -> None:
    what = check(RulesReportedAsLimit, skip=("flags",)).checked["time_limit"]
    assert re.search(r"; \d+ truncated after \d to 4 \(pass max_episode_steps=5 if only", what), what
    assert "truncated after" not in check(Limited).checked["time_limit"]


class Limited(Short):
    max_episode_steps = 5


class Rounding(DiceVectorEnv):
    """An info whose last bits depend on the number of rows."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        means = np.full(self.num_envs, 0.1) + 1e-17 * self.num_envs
        return *outcome, infos | {"mean": means * (1 + 1e-16 * self.num_envs)}


def test_infos_that_depend_on_rounding_can_be_left_out() -> None:
    with pytest.raises(ConformanceError, match="info"):
        check(Rounding)
    check(Rounding, ignore_infos=("mean",))


def test_the_report_says_what_was_visited() -> None:
    report = check(DiceVectorEnv, steps=3, choose=lambda env, infos, rng: np.zeros(env.num_envs, dtype=int))
    found = report.coverage
    assert (found.terminated, found.truncated, found.actions, found.all_actions) == (0, 0, {0: 54}, 2)
    assert "  not visited  terminated ends; truncated ends; actions 1" in str(report).splitlines()


def test_more_coverage_can_be_asked_for() -> None:
    wanted = Wanted(terminated=3, truncated=2, observations=20, actions_fraction=1)
    report = check(Short, steps=2, wanted=wanted)
    assert report.coverage.lacks(wanted) == ""
    with pytest.raises(ConformanceError, match=r"visit only \d+ of 9,999 terminated ends\. Pass a `choose`"):
        check(DiceVectorEnv, steps=2, wanted=Wanted(terminated=9999, most_steps=20))


def test_coverage_that_cannot_be_had_is_refused() -> None:
    for impossible in ({"actions_fraction": 2.0}, {"truncated": -1}, {"actions_fraction": float("nan")}):
        with pytest.raises(HotloopError, match="cannot be visited; use counts of at least 0 and a fraction"):
            Wanted(**impossible)


def test_an_environment_that_declares_copy_false_is_not_checked_for_aliasing() -> None:
    class Owning(DiceVectorEnv):
        def __init__(self, num_envs: int):
            super().__init__(num_envs, copy=False)

    assert check(Owning).not_checked["aliasing"] == "the environment declares copy=False"


def test_words_that_name_no_rule() -> None:
    with pytest.raises(HotloopError, match="is not a rule; the rules are spaces, same_seed"):
        check(DiceVectorEnv, skip=("batchsize",))
    for too_little in ({"num_envs": 1}, {"steps": 1}, {"seeds": ()}):
        with pytest.raises(HotloopError, match="check too little"):
            check(DiceVectorEnv, **too_little)


def test_masks_of_actions_that_do_not_begin_at_0() -> None:
    class FromOne(DiceVectorEnv):
        def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = NEXT):
            super().__init__(num_envs, autoreset_mode)
            self.single_action_space = Discrete(2, start=1)
            self.action_space = batch_space(self.single_action_space, num_envs)

        def step(self, actions: Any) -> Any:
            assert (actions == 2).all()
            *outcome, infos = super().step(actions - 1)
            return *outcome, infos | {"action_mask": np.tile([False, True], (self.num_envs, 1))}

    assert set(check(FromOne, steps=20, choose=masked_second).coverage.actions) == {1}


def masked_second(env: Any, infos: dict[str, Any], rng: np.random.Generator) -> Any:
    mask = np.tile([False, True], (env.num_envs, 1))
    return random_actions(env, {"action_mask": mask}, rng)
