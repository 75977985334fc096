"""An encoder for pictures of boards on which things move along whole rows and columns.

The picture becomes a grid of cells, one vector each. Then come blocks in which information crosses whole rows
and columns: a gated linear recurrence runs over the cells in each of the four directions,

    state[i] = input[i] + gate[i] * state[i - 1]

where input and gate (0 to 1) are computed from the vector of cell i. A gate can close at a wall. Convolutions
of 3 x 3 need a layer per cell for the same reach. (The recurrence is that of quasi-recurrent networks,
Bradbury et al. 2017, along rows and columns as in ReNet, Visin et al. 2015.)

At the end, each of several attention maps chooses a cell and reads its vector. A trainer that knows which
cells matter can train the maps directly, by their `place_logits`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotloop._util.errors import HotloopError

GATE_BIAS = 1.0  # before training, gates are mostly open


class GatedScanBlock(nn.Module):
    """Adds gated scans in four directions to the cells [rows, columns, batch, channels]."""

    def __init__(self, channels: int):
        super().__init__()
        self.width = channels // 2
        self.norm = nn.LayerNorm(channels)
        self.gates_and_inputs = nn.Linear(channels, 8 * self.width)
        self.output = nn.Linear(4 * self.width, channels)
        with torch.no_grad():
            self.gates_and_inputs.bias[: 4 * self.width] = GATE_BIAS
            self.output.weight *= 0.5

    def forward(self, cells: Tensor) -> Tensor:
        gates, inputs = self.gates_and_inputs(self.norm(cells)).chunk(2, dim=-1)
        gates_along = self._along(torch.sigmoid(gates)).unbind(0)
        inputs_along = self._along(inputs).unbind(0)
        state = inputs_along[0]
        states = [state]
        for gate, new in zip(gates_along[1:], inputs_along[1:], strict=True):
            state = torch.addcmul(new, gate, state)
            states.append(state)
        return cells + cast(Tensor, self.output(torch.relu(self._back(torch.stack(states)))))

    def _along(self, maps: Tensor) -> Tensor:
        """The four directions turned so that the first axis runs along each: down, up, right, left."""
        down, up, right, left = maps.chunk(4, dim=-1)
        return torch.cat([down, up.flip(0), right.transpose(0, 1), left.transpose(0, 1).flip(0)], dim=-1)

    def _back(self, maps: Tensor) -> Tensor:
        """What `_along` turned, as rows and columns again."""
        down, up, right, left = maps.chunk(4, dim=-1)
        return torch.cat([down, up.flip(0), right.transpose(0, 1), left.flip(0).transpose(0, 1)], dim=-1)


class GatedScanEncoder(nn.Module):
    """Pictures of boards, `board_size` cells along a side, to a vector; without memory, as `ConvEncoder`."""

    def __init__(
        self,
        shape: tuple[int, ...],
        board_size: int,
        channels: int,
        layers: int,
        places: int,
        features: int,
    ):
        super().__init__()
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] % board_size:
            raise HotloopError(
                f"Pictures of shape {shape} cannot be cut into {board_size} x {board_size} cells; the "
                "encoder 'scan' needs square pictures whose side is a multiple of board_size."
            )
        self.board_size, self.pixels = board_size, shape[1] // board_size
        self.patches = nn.Linear(shape[0] * self.pixels**2, channels)
        self.mixed = nn.Linear(channels, channels)
        self.blocks = nn.ModuleList(GatedScanBlock(channels) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.places = nn.Linear(channels, places)
        self.head = nn.Linear(places * channels, features)
        self.features = features
        self.state_shape: tuple[int, ...] = (0,)

    def forward(self, observations: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features [steps, batch, features] of observations [steps, batch, ...], and the unchanged state."""
        features, _ = self.read(observations.flatten(0, 1))
        return features.view(*observations.shape[:2], self.features), state

    def read(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Features [batch, features], and place logits [batch, places, cells] of the attention maps."""
        cells = self.mixed(torch.relu(self.patches(self._cut(pictures))))
        for block in self.blocks:
            cells = block(cells)
        cells = self.norm(cells).flatten(0, 1).transpose(0, 1)  # [batch, cells, channels]
        place_logits = self.places(cells).transpose(1, 2)
        seen = torch.bmm(torch.softmax(place_logits, dim=2), cells)
        return functional.relu(self.head(seen.flatten(1))), place_logits

    def _cut(self, pictures: Tensor) -> Tensor:
        """The pixels of each cell, [rows, columns, batch, pixels], bytes scaled to about -1.6 .. 0.4."""
        size, pixels = self.board_size, self.pixels
        cut = pictures.view(len(pictures), -1, size, pixels, size, pixels).permute(2, 4, 0, 1, 3, 5)
        # The background of the boards is bright; so it is near 0, and what is on it stands out.
        return cut.reshape(size, size, len(pictures), -1).float().mul_(1 / 128).sub_(1.6)
