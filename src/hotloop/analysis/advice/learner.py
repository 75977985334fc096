"""How much the learner works per env step, and in which precision."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.advice.commands import as_typed, command_again
from hotloop.analysis.advice.recommendation import Change, about, advise, library, rate
from hotloop.analysis.advice.run_view import LEARNER, RunView, near
from hotloop.analysis.findings import Recommendation

LEAST_SHARE = 0.05
LEARNER_SHARE = 0.4  # a learner with a smaller share does not hold up training
UPDATES_PER_ITERATION = 4.0
UPDATES_PER_ENV_STEP = 0.1  # classic DQN makes 0.25 with one env
LEAST_BACKWARDS = 3.5  # for each step of an optimizer; losses of actor, critic and temperature are three
LONG_BACKWARD_NS = 5e6  # a backward pass so long is no overhead
LEAST_PARAMETERS = 20_000  # in smaller networks the calls cost more than the arithmetic
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
BOOSTED_ACTIONS = ("Box", "Discrete", "MultiDiscrete")
LEAST_BOOSTED_SHARE = 0.1
# The same for scripts of plain torch, by region; measured with benchmarks/programs/single_file_*.py, recorded
# with and without. The backward pass of the loss stays torch's. Distributions are known by sampled lines.
BOOSTED_REGIONS = {
    "policy_forward": (0.15, 0.45),
    "policy_rest": (0.15, 0.45),
    "policy_value": (0.15, 0.45),
    "learner_forward": (0.15, 0.45),
    "backward": (0.0, 0.2),
    "optimizer_step": (0.45, 0.7),
    "clip_grad_norm": (0.45, 0.7),
}
BOOSTED_DISTRIBUTIONS = (0.4, 0.7)
# boost/distributions.py replaces these two: a MultivariateNormal stays torch's.
BOOSTED_CLASSES = ("torch.distributions.categorical.", "torch.distributions.normal.")
LEAST_MLP_SHARE = 0.9  # of the parameters that Adam trains
# With more, `hotloop boost` leaves batches of 256 to torch; the second when torch may use several threads.
MOST_MLP_PARAMETERS, MOST_ON_THREADS = 150_000, 10_000
LEAST_BOOST_GAIN = 1.05


def boost(run: RunView) -> Recommendation | None:
    """Models and networks that `hotloop boost` can run on compiled kernels."""
    entries = run.capture.facts.get("libraries") or ()
    mine = [entry for entry in entries if entry.get("pid") == run.process.pid]
    models = [model for entry in mine for model in entry.get("models", ())]
    if any(entry.get("boost") for entry in mine):
        return None
    if not models:
        return _boost_torch(run, [one for entry in mine for one in entry.get("optimizers", ())])
    if not all(
        model["algorithm"] in BOOSTABLE
        and model["features_extractor"] == "FlattenExtractor"
        and model["device"] == "cpu"
        and model.get("action_space", "Box") in BOOSTED_ACTIONS
        and model.get("use_sde") != "True"
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
    return advise(
        run,
        "boost",
        rows[0],
        "Run Stable-Baselines3 on compiled kernels (`hotloop boost`)",
        evidence,
        _BOOST_ADVICE,
        run.gain(rows, (least, most)),
        _boost_change(run),
        claimed=rows,
    )


_BOOST_ADVICE = (
    "The script stays as it is. Random numbers are the same and results are equal up to rounding, which is "
    "checked against the library while it trains. What cannot be boosted runs as always; a line on stderr "
    "says why."
)


def _boost_change(run: RunView) -> Change:
    command = command_again(run.capture)
    return Change(
        as_typed("boost", run.capture, command)
        if command
        else "hotloop.boost() in the first line of the script",
        *("minutes", "rounding", "environment"),
        environment={"HOTLOOP_BOOST": "1"},
    )


def _boost_torch(run: RunView, optimizers: list[dict[str, Any]]) -> Recommendation | None:
    """Scripts of plain torch that train small MLPs with Adam."""
    trained = sum(one.get("parameters", 0) for one in optimizers)
    in_mlps = sum(one.get("mlp_parameters", 0) for one in optimizers)
    threads = run.compute_threads[0]
    largest = MOST_MLP_PARAMETERS if threads == 1 else MOST_ON_THREADS
    if not trained or in_mlps < LEAST_MLP_SHARE * trained or in_mlps > largest:
        return None
    rows = run.outermost(lambda row: row.name in BOOSTED_REGIONS)
    share, distributions = sum(row.share for row in rows), 0.0
    if run.lines is not None:
        paths = run.lines.paths_where(lambda path: path.called.startswith(BOOSTED_CLASSES))
        distributions = run.lines.share_of(paths)
    least, most = (
        sum(row.share * BOOSTED_REGIONS[row.name][end] for row in rows)
        + distributions * BOOSTED_DISTRIBUTIONS[end]
        for end in (0, 1)
    )
    gain = run.gain(rows, (least / share, most / share)) if share > 0 else None
    if gain is None or gain.value < LEAST_BOOST_GAIN:
        return None
    evidence = [
        f"Adam trains {in_mlps:,} parameters of MLPs in nn.Sequential on the CPU.",
        f"Forward and backward passes, gradient clipping and the optimizer took {percent(share)} of the wall "
        f"time{f', torch.distributions {percent(distributions)}' if distributions >= 0.01 else ''}.",
        f"Assumption: compiled kernels save between {about(least)} and {about(most)} of the wall time.",
    ]
    return advise(
        run,
        "boost",
        rows[0],
        "Run the networks and Adam on compiled kernels (`hotloop boost`)",
        evidence,
        _BOOST_ADVICE,
        gain,
        _boost_change(run),
        claimed=(),
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


def backward_one_by_one(run: RunView) -> Recommendation | None:
    """Several backward passes for one step of an optimizer, as with a loop over samples or agents."""
    optimizers = Counter[str]()
    for row in run.rows:
        if row.category == "optimizer" and not row.is_gap:
            optimizers[row.name] += row.calls
    steps = max(optimizers.values(), default=0)
    rows = [row for row in run.outermost(lambda row: row.category == "backward") if not row.is_gap]
    calls = sum(row.calls for row in rows)
    share = sum(row.share for row in rows)
    if not steps or calls < LEAST_BACKWARDS * steps or share < LEAST_SHARE:
        return None
    if sum(row.total_ns for row in rows) / calls > LONG_BACKWARD_NS:
        return None  # a large batch in pieces, to save memory
    each = calls / steps
    forward = [
        row for row in run.outermost(lambda row: row.category == "model") if near(row.calls, calls, 0.3)
    ]
    return advise(
        run,
        "backward_one_by_one",
        rows[0],
        f"Add up the losses and call backward once (now {rate(each)} times for each optimizer step)",
        [
            f"{calls:,} backward passes for {steps:,} optimizer steps took {percent(share)} of training.",
            "Each pass costs about the same for one sample as for a batch.",
            f"Assumption: one pass instead of {rate(each)} saves between 40 % and {about(1 - 1 / each)}.",
        ],
        "Stack the inputs, compute the loss of the whole batch, and call backward once.",
        run.gain([*rows, *forward], (0.4, 1 - 1 / each)),
        Change("one backward for the summed loss", effort="hours", safety="rounding"),
        claimed=[*rows, *forward],
    )


TABLE_ROWS = 10_000  # rows of a tensor from which on it counts as a table of vectors
MOST_OF_IT = 0.7  # part of the optimizer's parameters that the table has to be
# Part of the time of a region that goes into rows without a gradient, at least and at most.
DENSE = {"optimizer_step": (0.6, 0.97), "zero_grad": (0.6, 0.97), "learner_forward": (0.0, 0.1)}
DENSE_OTHERS = (0.2, 0.85)  # backward passes, and regions of the user's


def dense_embedding(run: RunView) -> Recommendation | None:
    """Every row of a large table of vectors is stepped, though a batch uses few of them."""
    tables = [one for one in _optimizers(run) if _trains_a_table(one)]
    rows = run.outermost(lambda row: row.category in LEARNER and not row.is_gap)
    share = sum(row.share for row in rows)
    if not tables or share < 2 * LEAST_SHARE:
        return None
    height, width = tables[0]["largest"]
    least, most = (
        sum(row.share * DENSE.get(row.name, DENSE_OTHERS)[end] for row in rows) / share for end in (0, 1)
    )
    part = percent(height * width / tables[0]["parameters"])
    return advise(
        run,
        "dense_embedding",
        None,
        f"Step only the rows that a batch uses: the table of {height:,} vectors is dense",
        [
            f"{tables[0]['class']} steps a tensor of {height:,} x {width} numbers, {part} of its parameters. "
            "Unless its gradient is sparse, every row is zeroed, added up and stepped.",
            f"Forward and backward passes and the optimizer took {percent(share)} of training.",
            f"Assumption: between {about(least)} and {about(most)} of that time is saved.",
        ],
        "Use nn.Embedding(..., sparse=True) with torch.optim.SparseAdam (or SGD) for the table, and the "
        "optimizer as it is for the rest. SparseAdam moves only rows with a gradient: results differ.",
        run.gain(rows, (least, most)),
        Change("sparse gradients for the table of vectors", effort="minutes", safety="semantic"),
        claimed=rows,
    )


def _optimizers(run: RunView) -> list[dict[str, Any]]:
    """What was recorded about each optimizer of the training process."""
    entries = run.capture.facts.get("libraries") or ()
    return [
        one for entry in entries if entry.get("pid") == run.process.pid for one in entry.get("optimizers", ())
    ]


def _trains_a_table(optimizer: dict[str, Any]) -> bool:
    shape = tuple(optimizer.get("largest") or ())
    if len(shape) != 2 or "Sparse" in optimizer.get("class", ""):
        return False
    height, width = shape
    most = height * width >= MOST_OF_IT * optimizer.get("parameters", 0)
    return bool(height >= TABLE_ROWS and height >= 20 * width and most)


# Parameters of the largest optimizer, and what float32 saves of forward, backward and Adam. Measured on one
# thread: 35 % with 19,000 parameters and 128 rows, 41 to 50 % with 71,000, 60 % with 273,000.
SAVED_BY_FLOAT32 = ((250_000, (0.35, 0.7)), (60_000, (0.3, 0.65)), (0, (0.15, 0.6)))


def float64_networks(run: RunView) -> Recommendation | None:
    """Networks are trained in float64, and large enough for it to matter."""
    trained = [one for one in _optimizers(run) if one.get("dtypes") == ["float64"]]
    parameters = sum(one.get("parameters", 0) for one in trained)
    rows = run.outermost(lambda row: row.category in LEARNER | {"policy"} and not row.is_gap)
    share = sum(row.share for row in rows)
    if parameters < LEAST_PARAMETERS or share < 4 * LEAST_SHARE:
        return None
    largest = max(one.get("parameters", 0) for one in trained)
    least, most = next(saved for size, saved in SAVED_BY_FLOAT32 if largest >= size)
    return advise(
        run,
        "float64_networks",
        None,
        "Compute in float32: the networks are in float64 (double precision)",
        [
            f"All {parameters:,} trained parameters are float64; their forward and backward passes and "
            f"optimizer steps took {percent(share)} of training.",
            "float64 moves twice the bytes, and a core computes half as many float64 numbers at a time.",
            f"Assumption: float32 saves {about((least + most) / 2)} of that time (between {about(least)} and "
            f"{about(most)}); small networks gain less, since calls take their time.",
        ],
        "Remove .double() and torch.set_default_dtype(torch.float64), make observations float32 once "
        "(dtype=np.float32), and keep networks, replay and targets in float32. Results change by rounding.",
        run.gain(rows, (least, most)),
        Change("float32 networks, observations and replay", effort="hours", safety="semantic"),
        claimed=rows,
    )
