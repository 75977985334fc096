"""Rows that are repeated before a network sees them, and data prepared anew whenever they are drawn."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

import pytest

from hotloop.analysis.advice.idioms import Match
from hotloop.analysis.advice.repeated_rows import repeated_rows
from hotloop.analysis.advice.stored_once import prepared_at_every_draw
from hotloop.analysis.hot_statements import Spot
from tests.unit.test_idioms import spot

CRITIC = """
class Critic:
    def forward(self, obs, act):
        z = self.encoder(obs)  # hot networks
        return self.head(torch.cat([z, act], -1))
class CQL:
    def q_of_samples(self, critic, obs, acts):
        b, n, _ = acts.shape
        rep = obs.unsqueeze(1).repeat(1, n, 1).view(b * n, -1)
        return critic(rep, acts.reshape(b * n, -1))  # calls
    def update(self, critic, obs, act):
        return critic(obs, act)
"""

REPEATED = [
    """
    def learn(self, obs):
        state = obs.flatten(-2)
        shared = state.unsqueeze(-2).expand(*state.shape[:-1], 5, state.shape[-1])
        for idx in torch.randperm(len(obs)).chunk(4):
            value = self.critic(shared[idx])  # hot networks
    """,
    """
    def plan(self, obs):
        rows = torch.repeat_interleave(obs, 10, dim=0)
        z = self.encoder(rows)  # hot networks
        return self.head(torch.cat([z, self.candidates], 1))
    """,
    """
    def share(obs, n):
        return obs.unsqueeze(1).expand(-1, n, -1)
    def values(critic, obs):
        return critic(share(obs, 3))  # hot networks
    """,
]

NOT_REPEATED = [
    # the rows differ: something else goes in
    """
    def q(self, obs, acts):
        rep = obs.unsqueeze(1).repeat(1, n, 1).view(b * n, -1)
        return self.net(torch.cat([rep, acts], -1))  # hot networks
    """,
    # a grey picture with three channels
    """
    def features(self, frames):
        return self.backbone(frames.repeat(1, 3, 1, 1))  # hot networks
    """,
    # every step of a decoder gets the code of the episode
    """
    def decode(self, z):
        self.decoder = nn.LSTM(8, 8)
        steps = z.unsqueeze(1).expand(-1, 20, -1)
        return self.decoder(steps)  # hot networks
    """,
    # each copy gets other dropped units
    """
    def committee(self, obs):
        self.drop = nn.Dropout(0.1)
        rows = obs.repeat_interleave(10, 0)
        return self.net(rows)  # hot networks
    """,
    # features, not rows
    """
    def wide(self, obs):
        return self.net(obs.repeat(1, 4))  # hot networks
    """,
    # drawn again after the copies were mixed
    """
    def wide(self, obs):
        rows = obs.repeat_interleave(4, 0)
        return self.net(rows[idx])  # hot networks
    """,
]

PREPARED = [
    """
    class Shrink(Transform):
        def _apply_transform(self, pixels):
            grey = pixels.float().mean(-1) / 255.0
            return F.avg_pool2d(grey, 3)  # hot
    def main():
        replay = TensorDictReplayBuffer(storage=LazyTensorStorage(9), transform=Shrink(in_keys=["pixels"]))
    """,
    """
    class Frames(Dataset):
        def __getitem__(self, i):
            return cv2.resize(self.frames[i], (42, 42)) / 255.0  # hot
    """,
    """
    def small(frame):
        return frame[::2, ::2].astype(np.float32)  # hot
    class Memory:
        def sample(self, n):
            rows = self.rng.integers(0, self.size, n)
            return np.stack([small(self.frames[r]) for r in rows])
    """,
]

NOT_PREPARED = [
    # bytes are stored, numbers are computed: the small form is the stored one
    """
    class Memory:
        def sample(self, n):
            rows = self.rng.integers(0, self.size, n)
            return self.frames[rows].astype(np.float32) / 255.0  # hot
    """,
    # augmentation differs for each draw
    """
    class Crop(Transform):
        def _apply_transform(self, pixels):
            y, x = torch.randint(8, (2,)).tolist()
            return F.interpolate(pixels[..., y:, x:], (64, 64))  # hot
    def main():
        replay = TensorDictReplayBuffer(storage=LazyTensorStorage(9), transform=Crop())
    """,
    # a transform of the env: each frame once
    """
    class Shrink(Transform):
        def _apply_transform(self, pixels):
            return F.avg_pool2d(pixels, 3)  # hot
    def main():
        env = TransformedEnv(GymEnv("Pong"), Shrink(in_keys=["pixels"]))
        replay = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    """,
    # every second step of a recording is chosen once, before training
    """
    class Log:
        def __init__(self, frames):
            self.frames = shrunk(frames)
        def sample(self, n):
            return self.frames[self.rng.integers(0, 9, n)]
    def shrunk(frames):
        return frames[:, ::2, ::2]  # hot
    """,
]


def method(source: str) -> Spot:
    """The hot statement of a method, which knows its class as samples do."""
    one = spot(source)
    tree = ast.parse(textwrap.dedent(source))
    owner = [c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and one.line in _lines(c)]
    return replace(one, function=f"{owner[0]}.{one.function}" if owner else one.function)


def _lines(node: ast.ClassDef) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)


def called_from(share: float) -> Match | None:
    """What the encoder of CRITIC gets, if this part of its time comes from the call with repeated rows."""
    rows = CRITIC.splitlines()
    line = next(n for n, text in enumerate(rows, 1) if "# calls" in text)
    other = next(n for n, text in enumerate(rows, 1) if "critic(obs, act)" in text)
    return repeated_rows(replace(spot(CRITIC), callers=((line, share), (other, 1 - share))))


@pytest.mark.parametrize("source", REPEATED)
def test_a_network_that_gets_the_same_rows_again_is_named(source: str) -> None:
    found = repeated_rows(spot(source))
    assert found is not None and found.backward and 0 < found.saved[0] <= found.saved[1] <= found.saved[2] < 1


def test_known_repetition_bounds_what_is_saved() -> None:
    ten, three = (repeated_rows(spot(REPEATED[place])) for place in (1, 2))
    assert ten is not None and ten.saved[2] == pytest.approx(0.9)
    assert three is not None and three.saved[2] == pytest.approx(UNKNOWN)


UNKNOWN = 0.9  # the function does not say how often: its caller's 3 is not followed


def test_an_encoder_is_named_for_the_callers_that_repeat_its_input() -> None:
    most, some = called_from(0.8), called_from(0.4)
    assert most is not None and some is not None and most.saved[1] == pytest.approx(2 * some.saved[1])
    assert "self.encoder" in most.title and called_from(0.0) is None


def test_without_gradients_no_backward_pass_gets_cheaper() -> None:
    source = (
        "@torch.no_grad()\ndef act(self, obs):\n    rows = obs.repeat(8, 1)\n"
        "    return self.net(rows)  # hot networks"
    )
    found = repeated_rows(spot(source))
    assert found is not None and not found.backward


@pytest.mark.parametrize("source", NOT_REPEATED)
def test_rows_that_differ_are_left_alone(source: str) -> None:
    assert repeated_rows(spot(source)) is None


@pytest.mark.parametrize("source", PREPARED)
def test_data_that_are_made_smaller_at_every_draw_are_named(source: str) -> None:
    found = prepared_at_every_draw(method(source))
    assert found is not None and found.name == "prepared_at_every_draw"


@pytest.mark.parametrize("source", NOT_PREPARED)
def test_conversions_and_augmentations_are_left_alone(source: str) -> None:
    assert prepared_at_every_draw(method(source)) is None
