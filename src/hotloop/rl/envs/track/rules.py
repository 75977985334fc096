"""The rules of the track for one car in plain Python: the reference for the kernels.

State: position, heading, speed, slip (angle between heading and motion), in SI units. A step applies the
action to a kinematic bicycle model for 0.02 s, projects the car onto the centre line in a loop over all
segments, and computes reward and flags.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.track.line import Line

DT_S = 0.02
LEAST_ACCELERATION, MOST_ACCELERATION = -6.0, 4.0  # m/s^2
MOST_STEERING = math.radians(25.0)
FRONT_M, REAR_M = 1.2, 1.4  # axles to the centre of mass
MOST_SPEED = 15.0  # m/s
START_SPEED, START_OFFSET_M, START_TURN = 4.0, 0.5, 0.1
OBSERVATION_SIZE = 8


@dataclass(frozen=True)
class TrackConfig:
    """Settings of the task; lengths in metres, speeds in m/s."""

    track_seed: int = 0
    """Seed of the centre line."""
    track_points: int = 600
    """Number of points of the centre line."""
    lap_m: float = 300.0
    """Length of a lap."""
    half_width_m: float = 2.0
    """Beyond this distance from the line the car is off the track."""
    crash_m: float = 4.0
    """Beyond this distance from the line the car crashes, which ends the episode."""
    target_speed: float = 8.0
    """Speed without penalty."""
    max_episode_steps: int = 5000
    """Steps after which an episode is truncated."""
    off_track_penalty: float = 1.0
    """Penalty for every step off the track."""
    crash_penalty: float = 50.0
    """Penalty for a crash."""


class Track:
    """One car on one track."""

    def __init__(self, line: Line, config: TrackConfig, rng: np.random.Generator):
        self.line, self.config, self.rng = line, config, rng

    def reset(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Place the car near a random point of the line."""
        place = int(self.rng.random() * len(self.line.points))
        offset = (2.0 * self.rng.random() - 1.0) * START_OFFSET_M
        turn = (2.0 * self.rng.random() - 1.0) * START_TURN
        tangent_x, tangent_y = self.line.tangents[place].tolist()
        self.x = float(self.line.points[place, 0]) - tangent_y * offset
        self.y = float(self.line.points[place, 1]) + tangent_x * offset
        self.heading = math.atan2(tangent_y, tangent_x) + turn
        self.speed, self.slip = START_SPEED, 0.0
        self.elapsed, self.travelled_m = 0, 0.0
        self.segment, self.along_m, self.lateral = self.project()
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Drive for 0.02 s; action = (acceleration, steering), each clipped to -1..1."""
        pedal, wheel = (min(max(float(value), -1.0), 1.0) for value in action)
        middle, half = (
            (MOST_ACCELERATION + LEAST_ACCELERATION) / 2,
            (MOST_ACCELERATION - LEAST_ACCELERATION) / 2,
        )
        self.slip = math.atan(REAR_M / (FRONT_M + REAR_M) * math.tan(wheel * MOST_STEERING))
        self.x += DT_S * self.speed * math.cos(self.heading + self.slip)
        self.y += DT_S * self.speed * math.sin(self.heading + self.slip)
        self.heading = wrapped(self.heading + DT_S * self.speed / REAR_M * math.sin(self.slip))
        self.speed = min(max(self.speed + DT_S * (middle + half * pedal), 0.0), MOST_SPEED)
        self.elapsed += 1

        before_m = self.along_m
        self.segment, self.along_m, self.lateral = self.project()
        self.travelled_m += self.shorter_way(self.along_m - before_m)
        terminated = abs(self.lateral) > self.config.crash_m
        truncated = not terminated and (
            self.travelled_m >= self.line.lap_m or self.elapsed >= self.config.max_episode_steps
        )
        return self.observe(), self.reward(pedal, wheel, terminated), terminated, truncated, self.info()

    def project(self) -> tuple[int, float, float]:
        """Return the nearest segment, its nearest point's position on the line, the distance (left is +)."""
        best, best_square, best_along, best_side = -1, math.inf, 0.0, 0.0
        start_m = 0.0
        for index, ((px, py), (tx, ty), length) in enumerate(
            zip(
                self.line.points.tolist(),
                self.line.tangents.tolist(),
                self.line.lengths.tolist(),
                strict=True,
            )
        ):
            dx, dy = self.x - px, self.y - py
            along = min(max(dx * tx + dy * ty, 0.0), length)
            ex, ey = dx - along * tx, dy - along * ty
            square = ex * ex + ey * ey
            if square < best_square:
                best, best_square, best_along, best_side = index, square, start_m + along, tx * dy - ty * dx
            start_m += length
        return best, best_along, math.copysign(math.sqrt(best_square), best_side)

    def shorter_way(self, along_m: float) -> float:
        """Return the signed distance between two positions on the line, the shorter way round."""
        if along_m > self.line.lap_m / 2:
            return along_m - self.line.lap_m
        if along_m < -self.line.lap_m / 2:
            return along_m + self.line.lap_m
        return along_m

    def heading_error(self) -> float:
        """Return the heading relative to the line, in -pi..pi."""
        tangent_x, tangent_y = self.line.tangents[self.segment].tolist()
        return wrapped(self.heading - math.atan2(tangent_y, tangent_x))

    def reward(self, pedal: float, wheel: float, crashed: bool) -> float:
        """Return 1 for a car on the line at target speed without control effort; less for every error."""
        lateral = self.lateral / self.config.half_width_m
        turn = self.heading_error()
        speed = (self.speed - self.config.target_speed) / self.config.target_speed
        reward = 1.0 - 0.5 * lateral * lateral - 0.5 * turn * turn - 2.0 * speed * speed
        reward -= 0.01 * pedal * pedal + 0.02 * wheel * wheel
        if abs(self.lateral) > self.config.half_width_m:
            reward -= self.config.off_track_penalty
        if crashed:
            reward -= self.config.crash_penalty
        return reward

    def observe(self) -> NDArray[np.float32]:
        """Return lateral and heading error, forward and left speed, tangent, cosine and sine of heading."""
        tangent_x, tangent_y = self.line.tangents[self.segment].tolist()
        ahead, aside = self.speed * math.cos(self.slip), self.speed * math.sin(self.slip)
        seen = (self.lateral, self.heading_error(), ahead, aside, tangent_x, tangent_y)
        return np.array([*seen, math.cos(self.heading), math.sin(self.heading)], dtype=np.float32)

    def info(self) -> dict[str, Any]:
        """Progress as a fraction of the lap."""
        return {"lap_fraction": self.travelled_m / self.line.lap_m}


def wrapped(angle: float) -> float:
    """Wrap an angle to -pi..pi; angles here are never more than one turn off."""
    if angle > math.pi:
        return angle - 2 * math.pi
    if angle < -math.pi:
        return angle + 2 * math.pi
    return angle
