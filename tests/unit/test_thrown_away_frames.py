"""Wrappers that process frames which an action repeat throws away are found, those that need them are not."""

from __future__ import annotations

import pytest

from hotloop.analysis.advice.thrown_away_frames import frames_thrown_away
from hotloop.analysis.findings import Recommendation
from tests.unit.test_hot_lines import capture_with, path, run_of, with_source

GAME = """\
class Skip(gym.Wrapper):
    def __init__(self, env, n=3):
        super().__init__(env)
        self.n = n
    def step(self, action):
        gained = 0.0
        for _ in range({count}):
            frame, r, term, trunc, info = self.env.step(action)  # repeat
            gained += r
            {more}
        return frame, gained, term, trunc, info
class Small(gym.{base}):
    def {method}(self, {argument}):
        {pass_on}
        grey = cv2.cvtColor({frame}, cv2.COLOR_RGB2GRAY)  # work
        {keep}
        return {returned}
env = Skip(Small(Game()){given})
"""
PLAIN = {
    "count": "self.n",
    "more": "pass",
    "base": "ObservationWrapper",
    "method": "observation",
    "argument": "frame",
    "pass_on": "pass",
    "frame": "frame",
    "keep": "pass",
    "returned": "grey[::2, ::2]",
    "given": "",
}
BY_STEP = {
    "base": "Wrapper",
    "method": "step",
    "argument": "action",
    "pass_on": "obs, *rest = self.env.step(action)",
    "frame": "obs",
    "returned": "grey, *rest",
}


def advice_on(changes: dict[str, str], share: float = 5.0) -> list[Recommendation]:
    source = GAME.format(**PLAIN | changes)
    rows = source.splitlines()
    repeat = next(n for n, text in enumerate(rows, 1) if "# repeat" in text)
    work = next(n for n, text in enumerate(rows, 1) if "# work" in text)
    main, skip = ("train.py", "<module>", 1), ("train.py", "Skip.step", 5)
    first = next(n for n, text in enumerate(rows, 1) if text.startswith("class Small")) + 1
    small = ("train.py", "Small." + (PLAIN | changes)["method"], first)
    paths = [
        path((main, len(rows)), (skip, repeat), (small, work)),
        path((main, len(rows)), called="torch._tensor.Tensor.backward"),
    ]
    capture = with_source(
        capture_with(paths, [share, 10 - share]),
        ("train.py", "<module>", 1, source),
        ("train.py", "Skip.step", 5, "\n".join(rows[4:11])),
    )
    return frames_thrown_away(run_of(capture))


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({}, 2 / 3),
        ({"count": "4"}, 3 / 4),
        ({"given": ", n=2"}, 1 / 2),
        ({"given": ", repeats"}, 3 / 4),
        ({"more": "if term or trunc:\n                break"}, 2 / 3),
        (BY_STEP, 2 / 3),
    ],
)
def test_frames_that_are_thrown_away_need_no_processing(changes: dict[str, str], saved: float) -> None:
    (found,) = advice_on(changes)
    assert found.safety == "safe" and found.gain is not None
    assert found.gain.value == pytest.approx(1 / (1 - 0.5 * saved), rel=0.02)
    assert "`Small` outside of `Skip`" in found.title


@pytest.mark.parametrize(
    "changes",
    [
        # frames are compared, or the larger of two is taken
        {"more": "frames.append(frame)"},
        {"more": "best = np.maximum(best, frame)"},
        # it remembers earlier frames
        {"keep": "self.last = grey"},
        {"keep": "self.frames.append(grey)"},
        {**BY_STEP, "keep": "self.seen[0] = grey"},
        # one step, or no wrapper below
        {"count": "1"},
        {"base": "Env"},
    ],
)
def test_frames_that_are_needed_are_left_alone(changes: dict[str, str]) -> None:
    assert advice_on(changes) == []


def test_cheap_processing_is_left_alone() -> None:
    assert advice_on({}, share=0.5) == []
