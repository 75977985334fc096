"""The rules of the track, compiled for many cars; `rules.py` is the readable reference.

Arrays, first index the row: `cars` float64 [rows, 8] (x, y, heading, speed, slip, along, lateral,
travelled), `segments` int32 [rows], `line` float64 [points, 6] (x, y, tangent x and y, length, position of
the segment's start), `settings` float64 (see `env.py`).
"""

from __future__ import annotations

import math
from typing import Any

from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.streams import next_below, next_double
from hotloop.rl.envs.track.rules import (
    DT_S,
    FRONT_M,
    LEAST_ACCELERATION,
    MOST_ACCELERATION,
    MOST_SPEED,
    MOST_STEERING,
    REAR_M,
    START_OFFSET_M,
    START_SPEED,
    START_TURN,
)

X, Y, HEADING, SPEED, SLIP, ALONG, LATERAL, TRAVELLED = range(8)
LAP, HALF_WIDTH, CRASH, TARGET_SPEED, MOST_STEPS, OFF_TRACK, CRASHED, NEAR = range(8)
_MIDDLE = (MOST_ACCELERATION + LEAST_ACCELERATION) / 2
_HALF = (MOST_ACCELERATION - LEAST_ACCELERATION) / 2
_REAR_SHARE = REAR_M / (FRONT_M + REAR_M)


@kernel
def wrapped(angle: float) -> float:
    """Wrap an angle to -pi..pi."""
    if angle > math.pi:
        return angle - 2 * math.pi
    if angle < -math.pi:
        return angle + 2 * math.pi
    return angle


@kernel
def project(row: int, cars: Any, segments: Any, line: Any, reach: int) -> None:
    """Find the nearest point on the line among all segments, or `reach` segments around the last one.

    Both searches break ties by the order of the line.
    """
    count = len(line)
    first, searched = 0, count
    if reach >= 0 and 2 * reach + 1 < count:
        first, searched = segments[row] - reach + count, 2 * reach + 1
    x, y = cars[row, X], cars[row, Y]
    best, best_square, best_along, best_side = count, math.inf, 0.0, 0.0
    for offset in range(searched):
        index = (first + offset) % count
        dx, dy = x - line[index, 0], y - line[index, 1]
        tx, ty = line[index, 2], line[index, 3]
        along = min(max(dx * tx + dy * ty, 0.0), line[index, 4])
        ex, ey = dx - along * tx, dy - along * ty
        square = ex * ex + ey * ey
        if square < best_square or (square == best_square and index < best):
            best, best_square = index, square
            best_along, best_side = line[index, 5] + along, tx * dy - ty * dx
    segments[row] = best
    cars[row, ALONG] = best_along
    cars[row, LATERAL] = math.copysign(math.sqrt(best_square), best_side)


@kernel
def heading_error(row: int, cars: Any, segments: Any, line: Any) -> float:
    """Return the heading relative to the line, in -pi..pi."""
    segment = segments[row]
    return wrapped(cars[row, HEADING] - math.atan2(line[segment, 3], line[segment, 2]))


@kernel
def observe(row: int, cars: Any, segments: Any, line: Any, observations: Any) -> None:
    """Write the row's observation."""
    segment = segments[row]
    observations[row, 0] = cars[row, LATERAL]
    observations[row, 1] = heading_error(row, cars, segments, line)
    observations[row, 2] = cars[row, SPEED] * math.cos(cars[row, SLIP])
    observations[row, 3] = cars[row, SPEED] * math.sin(cars[row, SLIP])
    observations[row, 4] = line[segment, 2]
    observations[row, 5] = line[segment, 3]
    observations[row, 6] = math.cos(cars[row, HEADING])
    observations[row, 7] = math.sin(cars[row, HEADING])


@kernel
def reset_row(row: int, cars: Any, segments: Any, line: Any, streams: Any, observations: Any) -> None:
    """Place the car near a random point of the line."""
    place = next_below(streams, row, len(line))
    offset = (2.0 * next_double(streams, row) - 1.0) * START_OFFSET_M
    turn = (2.0 * next_double(streams, row) - 1.0) * START_TURN
    cars[row, X] = line[place, 0] - line[place, 3] * offset
    cars[row, Y] = line[place, 1] + line[place, 2] * offset
    cars[row, HEADING] = math.atan2(line[place, 3], line[place, 2]) + turn
    cars[row, SPEED] = START_SPEED
    cars[row, SLIP] = 0.0
    cars[row, TRAVELLED] = 0.0
    project(row, cars, segments, line, -1)
    observe(row, cars, segments, line, observations)


@kernel
def reset_rows(rows: Any, cars: Any, segments: Any, line: Any, streams: Any, observations: Any) -> None:
    """Start an episode in the marked rows."""
    for row in range(len(rows)):
        if rows[row]:
            reset_row(row, cars, segments, line, streams, observations)


@kernel
def drive(row: int, pedal: float, wheel: float, cars: Any, segments: Any, line: Any, settings: Any) -> None:
    """Advance the bicycle model by 0.02 s and project the car onto the line."""
    slip = math.atan(_REAR_SHARE * math.tan(wheel * MOST_STEERING))
    heading, speed = cars[row, HEADING], cars[row, SPEED]
    cars[row, SLIP] = slip
    cars[row, X] += DT_S * speed * math.cos(heading + slip)
    cars[row, Y] += DT_S * speed * math.sin(heading + slip)
    cars[row, HEADING] = wrapped(heading + DT_S * speed / REAR_M * math.sin(slip))
    cars[row, SPEED] = min(max(speed + DT_S * (_MIDDLE + _HALF * pedal), 0.0), MOST_SPEED)

    before = cars[row, ALONG]
    project(row, cars, segments, line, int(settings[NEAR]))
    moved, lap = cars[row, ALONG] - before, settings[LAP]
    if moved > lap / 2:
        moved -= lap
    elif moved < -lap / 2:
        moved += lap
    cars[row, TRAVELLED] += moved


@kernel
def step_reward(
    row: int, pedal: float, wheel: float, cars: Any, segments: Any, line: Any, settings: Any
) -> float:
    """Return the reward of the last step."""
    lateral = cars[row, LATERAL] / settings[HALF_WIDTH]
    turn = heading_error(row, cars, segments, line)
    speed = (cars[row, SPEED] - settings[TARGET_SPEED]) / settings[TARGET_SPEED]
    reward = 1.0 - 0.5 * lateral * lateral - 0.5 * turn * turn - 2.0 * speed * speed
    reward -= 0.01 * pedal * pedal + 0.02 * wheel * wheel
    if abs(cars[row, LATERAL]) > settings[HALF_WIDTH]:
        reward -= settings[OFF_TRACK]
    if abs(cars[row, LATERAL]) > settings[CRASH]:
        reward -= settings[CRASHED]
    return float(reward)


@kernel
def step_rows(
    start: int,
    stop: int,
    mode: int,
    actions: Any,
    cars: Any,
    segments: Any,
    line: Any,
    settings: Any,
    streams: Any,
    elapsed: Any,
    over: Any,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    final_observations: Any,
    final_travelled: Any,
) -> int:
    """Step rows `start` to `stop - 1`; with SAME_STEP, episode ends are saved in the `final_` arrays.

    Returns the first row whose action is not finite, with nothing changed, or -1.
    """
    for row in range(len(actions)):
        if not (math.isfinite(actions[row, 0]) and math.isfinite(actions[row, 1])):
            return row
    for row in range(start, stop):
        if over[row] and mode == NEXT_STEP:
            reset_row(row, cars, segments, line, streams, observations)
            rewards[row], elapsed[row], over[row] = 0.0, 0, False
            terminated[row], truncated[row] = False, False
            continue
        pedal = min(max(float(actions[row, 0]), -1.0), 1.0)
        wheel = min(max(float(actions[row, 1]), -1.0), 1.0)
        drive(row, pedal, wheel, cars, segments, line, settings)
        elapsed[row] += 1
        crashed = abs(cars[row, LATERAL]) > settings[CRASH]
        finished = cars[row, TRAVELLED] >= settings[LAP] or elapsed[row] >= settings[MOST_STEPS]
        rewards[row] = step_reward(row, pedal, wheel, cars, segments, line, settings)
        terminated[row], truncated[row] = crashed, finished and not crashed
        observe(row, cars, segments, line, observations)
        if crashed or finished:
            if mode == SAME_STEP:
                final_observations[row] = observations[row]
                final_travelled[row] = cars[row, TRAVELLED]
                reset_row(row, cars, segments, line, streams, observations)
                elapsed[row] = 0
            else:
                over[row] = True
    return -1
