"""How much the learner works per env step, and how its data gets to a device."""

from __future__ import annotations

import shlex

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.commands import command_again
from hotloop.analysis.advice.recommendation import Change, about, advise, library, rate, times, took
from hotloop.analysis.advice.run_view import SYNCHRONISING, TRANSFERRING, RegionRow, RunView
from hotloop.analysis.findings import Recommendation

LEAST_SHARE = 0.05
LEARNER_SHARE = 0.4  # a learner with a smaller share does not hold up training
UPDATES_PER_ITERATION = 4.0
UPDATES_PER_ENV_STEP = 0.1  # classic DQN makes 0.25 with one env
LEAST_TRANSFERS = 8  # a batch has about five parts that cannot be stacked
CUT = 4  # the proposed change: a quarter of the updates


# What `hotloop boost` replaces, and the share of its time that it saves: the least and the most measured with
# `benchmarks/boost.py` for `train`; acting takes a tenth. tests/unit/test_boost.py compares the names.
BOOSTABLE = {
    "stable_baselines3.ppo.ppo.PPO": (0.75, 0.95),
    "stable_baselines3.a2c.a2c.A2C": (0.6, 0.9),
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO": (0.75, 0.95),
    "stable_baselines3.dqn.dqn.DQN": (0.8, 0.95),
    "stable_baselines3.sac.sac.SAC": (0.5, 0.85),
    "stable_baselines3.td3.td3.TD3": (0.35, 0.85),
    "stable_baselines3.ddpg.ddpg.DDPG": (0.35, 0.85),
}
LEAST_BOOSTED_SHARE = 0.1


def boost(run: RunView) -> Recommendation | None:
    """Stable-Baselines3 models that `hotloop boost` can run on compiled kernels."""
    entries = run.capture.facts.get("libraries") or ()
    mine = [entry for entry in entries if entry.get("pid") == run.process.pid]
    models = [model for entry in mine for model in entry.get("models", ())]
    if not models or any(entry.get("boost") for entry in mine):
        return None
    if not all(
        model["algorithm"] in BOOSTABLE
        and model["features_extractor"] == "FlattenExtractor"
        and model["device"] == "cpu"
        for model in models
    ):
        return None
    rows = run.outermost(lambda row: row.name in ("train", "policy_forward", "policy_value"))
    share = sum(row.share for row in rows)
    if share < LEAST_BOOSTED_SHARE:
        return None
    least = min(BOOSTABLE[model["algorithm"]][0] for model in models)
    most = max(BOOSTABLE[model["algorithm"]][1] for model in models)
    names = ", ".join(sorted({model["algorithm"].rpartition(".")[2] for model in models}))
    evidence = [
        f"The script trains {names} of Stable-Baselines3 with an MLP policy on the CPU.",
        f"Training and acting took {percent(share)} of the wall time.",
        f"Assumption: compiled kernels save between {about(least)} and {about(most)} of it.",
    ]
    command = shlex.join(command_again(run.capture))
    return advise(
        run,
        "boost",
        rows[0],
        "Run Stable-Baselines3 on compiled kernels (`hotloop boost`)",
        evidence,
        "The script stays as it is. Random numbers are the same and results are equal up to rounding, which "
        "is checked against the library while it trains. What cannot be boosted runs as always; a line on "
        "stderr says why.",
        run.gain(rows, (least, most)),
        Change(
            f"hotloop boost -- {command}" if command else "hotloop.boost() in the first line of the script",
            *("minutes", "rounding", "environment"),
            environment={"HOTLOOP_BOOST": "1"},
        ),
        claimed=rows,
    )


def too_many_updates(run: RunView) -> Recommendation | None:
    """The learner makes many updates per iteration of the loop and takes much of the time."""
    if not run.updates or not run.env_steps or not run.iterations or run.is_on_policy or not run.learner:
        return None
    per_iteration, per_step = run.updates / run.iterations, run.updates / run.env_steps
    many = per_iteration >= UPDATES_PER_ITERATION and per_step >= UPDATES_PER_ENV_STEP
    share = sum(row.share for row in run.learner)
    if not (many or (per_step > 1.05 and per_iteration >= 1.5)) or share < LEARNER_SHARE:
        return None
    row = run.learner[0]
    sampling = [r for r in run.outermost(lambda r: r.category == "replay") if run.per_update(r) > 0.9]
    around = set(run.learner)
    rows = run.learner + [r for r in sampling if r not in around and not around & set(run.above(r))]
    evidence = [
        f"{run.updates:,} updates for {run.env_steps:,} env steps: {rate(per_step)} per env step, "
        f"{rate(per_iteration)} per iteration of the loop.",
        f"The learner took {percent(share)} of the wall time.",
        f"The gain is for a quarter of the updates ({rate(per_iteration / CUT)} per iteration).",
    ]
    return advise(
        run,
        "too_many_updates",
        row,
        "Make fewer updates per env step",
        evidence,
        "This is less learning, not faster learning: compare returns after equal wall time. Fewer updates on "
        "larger batches often learn as much.",
        run.gain(rows, 1 - 1 / CUT),
        Change(
            "fewer gradient_steps, or a larger train_freq"
            if library(run) == "stable_baselines3"
            else "fewer updates per env step",
            *("minutes", "semantic", "flag"),
        ),
        tier="option",
        claimed=rows,
    )


def transfers_one_by_one(run: RunView) -> Recommendation | None:
    """Many small transfers where one would be enough."""

    def wanted(row: RegionRow) -> bool:
        moves = row.category == "transfer" or (
            row.category in ("other", "data", "replay", "policy", "framework") and row.name_has(TRANSFERRING)
        )
        return moves and not row.is_gap and _each(run, row) >= LEAST_TRANSFERS and row.mean_ns < 2e6

    rows = [row for row in run.outermost(wanted) if row.share >= LEAST_SHARE]
    if not rows:
        return None
    row = rows[0]
    each = _each(run, row)
    size = row.node.bytes_moved / row.calls if row.node.bytes_moved else None
    evidence = [took(row), f"It runs {times(each)} per iteration of the loop or update."]
    if size is not None:
        evidence.append(f"A transfer moves {size:,.0f} bytes, so the call costs more than the bytes.")
    evidence.append(
        f"Assumption: one transfer instead of {rate(each)} saves between 50 % and {about(1 - 1 / each)}."
    )
    return advise(
        run,
        "transfers_one_by_one",
        row,
        f"Move data in one transfer instead of {rate(each)} (`{row.name}`)",
        evidence,
        "Stack on the host, then make one tensor and one transfer; to a GPU from pinned memory with "
        "non_blocking=True.",
        run.gain(rows[:1], (0.5, 1 - 1 / each)),
        Change("stack the items and transfer the stack once", effort="hours", safety="safe"),
    )


def _each(run: RunView, row: RegionRow) -> float:
    """Calls per update inside the learner, else per iteration of the loop."""
    if run.updates and run.is_learning(row):
        return run.per_update(row)
    return run.per_iteration(row) or run.per_update(row)


def synchronising_calls(run: RunView) -> Recommendation | None:
    """Calls that make the program wait for the device in every update."""
    device_ns = sum(row.node.device_ns or 0 for row in run.rows)
    if run.capture.facts.get("device") is None and not device_ns:
        return None

    def wanted(row: RegionRow) -> bool:
        waits = row.category in ("wait", "transfer", "other", "logging", "loss", "policy")
        host_only = (row.node.device_ns or 0) < 0.2 * row.total_ns  # it computes nothing on the device
        often = max(run.per_update(row), run.per_iteration(row)) >= 0.9 and not row.is_gap
        one = max(run.per_update(row), run.per_iteration(row)) < 4 or row.name_has(SYNCHRONISING)
        spoken = row.name_has(SYNCHRONISING) or row.category == "wait"
        return waits and host_only and often and one and spoken

    rows = [row for row in run.outermost(wanted) if row.share >= LEAST_SHARE]
    if not rows:
        return None
    row = rows[0]
    # The device has to do its work in any case: only its idle time can be saved.
    most = min(0.9, max(run.wall_ns - device_ns, 0) / max(row.total_ns, 1))
    least = 0.5 * most if device_ns else 0.0
    evidence = [
        took(row),
        f"It runs {times(max(run.per_update(row), run.per_iteration(row)))} per update or iteration and "
        "computes nothing on the device: it waits for work queued earlier.",
        f"The device was busy for {duration(device_ns)} of {duration(run.wall_ns)}."
        if device_ns
        else "Device time was not measured; if the device is the limit, there is nothing to gain.",
        f"Assumption: synchronising every 100th time saves between {about(least)} and {about(most)} of it.",
    ]
    return advise(
        run,
        "synchronising_calls",
        row,
        f"Do not wait for the device in every update (`{row.name}`)",
        evidence,
        "Keep losses and metrics as device tensors and call .item() only when you log them, say every 100 "
        "updates.",
        run.gain([row], (least, most)),
        Change("collect tensors, call .item() only when logging", effort="minutes", safety="safe"),
    )
