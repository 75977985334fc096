"""The Petri environment: Gymnasium's contract, masks, bad actions, pictures, the expert."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium
import numba
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from hotloop._util.errors import HotloopError
from hotloop.measure.profiler import default
from hotloop.rl.envs.petri import kernels
from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.env import PetriEnv, PetriVectorEnv
from hotloop.rl.envs.petri.expert import expert_action
from hotloop.rl.envs.petri.job_shop import job_shop, makespan_config
from hotloop.rl.envs.petri.net import Net, Place, Transition

modes = pytest.mark.parametrize("turbo", [True, False])


def run_expert(env: PetriVectorEnv) -> tuple[float, dict[str, Any]]:
    _, infos = env.reset(seed=0)
    earned = 0.0
    while True:
        mask, clock_s = infos["action_mask"][0], int(infos["clock"][0])
        action = expert_action(env.net, env.tokens_of(0), clock_s, mask)
        _, rewards, terminated, truncated, infos = env.step(np.array([action]))
        earned += float(rewards[0])
        if terminated[0] or truncated[0]:
            return earned, {name: values[0] for name, values in infos.items()}


@modes
def test_the_checkers_of_gymnasium_and_sb3_pass(turbo: bool) -> None:
    env = gymnasium.make("hotloop/Petri-v0", turbo=turbo, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        check_env_of_sb3(env.unwrapped)


def test_many_are_made_by_gymnasium() -> None:
    envs = gymnasium.make_vec(
        "hotloop/Petri-v0", num_envs=3, vectorization_mode="vector_entry_point", wafers=2
    )
    observations, infos = envs.reset(seed=1)
    assert observations.shape == (3, 1 + 4 * 15 + 5 * 2)
    assert infos["action_mask"].shape == (3, 13)
    assert infos["_action_mask"].all()


@pytest.mark.parametrize("wafers", [1, 2, 5, 8, 30])
def test_the_expert_finishes_every_wafer(wafers: int) -> None:
    env = PetriVectorEnv(1, wafers=wafers, config=PetriConfig(time_limit_s=10_000), autoreset_mode="Disabled")
    earned, info = run_expert(env)
    assert (info["wafers_done"], info["scrapped"], info["dead"]) == (wafers, 0, False)
    # s3 alone, two chambers of 300 s, sets a limit; all but its first and last wafers are near it
    assert info["clock"] <= 570 + 160 * wafers
    assert earned > 4 * wafers


def test_chance_alone_scraps_nearly_every_time() -> None:
    env = PetriVectorEnv(50, autoreset_mode="SameStep", copy=False)
    _, infos = env.reset(seed=0)
    rng = np.random.default_rng(0)
    scrapped = finished = 0
    for _ in range(400):
        scores = rng.random(env.masks.shape) * infos["action_mask"]
        _, _, terminated, truncated, infos = env.step(scores.argmax(axis=1))
        if "final_info" in infos:
            ended = terminated | truncated
            scrapped += int((infos["final_info"]["scrapped"][ended] > 0).sum())
            finished += int((infos["final_info"]["wafers_done"][ended] == 8).sum())
    assert scrapped > 200
    assert finished == 0


@modes
def test_a_wafer_is_scrapped_after_the_limit_not_at_it(turbo: bool) -> None:
    env = PetriVectorEnv(1, wafers=1, turbo=turbo, autoreset_mode="Disabled")
    env.reset(seed=0)
    for action in (0, 1):
        env.step(np.array([action]))
    for _ in range((70 + 15) // 5):
        _, _, terminated, _, infos = env.step(np.array([12]))
        assert not terminated[0]
    assert (infos["clock"][0], infos["scrapped"][0]) == (95, 0)
    _, rewards, terminated, truncated, infos = env.step(np.array([12]))
    assert (terminated[0], truncated[0], infos["scrapped"][0]) == (True, False, 1)
    assert rewards[0] == pytest.approx(-0.001 * 5 - 0.02 * 5 - 10)
    assert infos["action_mask"][0].tolist() == [False] * 12 + [True]


@modes
def test_a_disabled_action_waits_and_costs_or_is_an_error(turbo: bool) -> None:
    env = PetriVectorEnv(2, turbo=turbo)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(np.array([3, 12]))
    assert infos["disabled"].tolist() == [True, False]
    assert infos["clock"].tolist() == [5, 5]
    assert rewards[1] - rewards[0] == pytest.approx(0.1)

    for threads in (1, 2):
        strict = PetriVectorEnv(
            2,
            turbo=turbo,
            config=PetriConfig(on_disabled="error"),
            num_threads=threads,
            autoreset_mode="Disabled",
        )
        strict.reset(seed=0)
        before = strict.save_state()
        with pytest.raises(HotloopError, match=r"action 3 \(place_s2\) of row 1 is not enabled"):
            strict.step(np.array([0, 3]))
        with pytest.raises(HotloopError, match=r"action 13 of row 0 is not in Discrete\(13\)"):
            strict.step(np.array([13, 3]))
        after = strict.save_state()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        _, _, _, _, infos = strict.step(np.array([0, 0]))
        assert infos["clock"].tolist() == [5, 5]
        strict.close()


@modes
def test_a_net_in_which_nothing_can_happen_any_more_is_dead(turbo: bool) -> None:
    net = Net("sink", (Place("p", tokens=1), Place("q", holding_s=3)), (Transition("t", ["p"], ["q"]),))
    env = PetriEnv(net=net, turbo=turbo)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [True, False]  # WAIT has nothing to wait for
    _, _, terminated, _, info = env.step(0)
    assert (terminated, info["action_mask"].tolist()) == (False, [False, True])
    _, reward, terminated, truncated, info = env.step(1)
    assert (terminated, truncated, info["dead"], info["clock"]) == (True, False, True, 3)
    assert reward == pytest.approx(-10 - 0.003)


@modes
def test_truncation_by_the_clock_and_by_steps(turbo: bool) -> None:
    for config in (PetriConfig(time_limit_s=15), PetriConfig(max_steps=3)):
        env = PetriEnv(config=config, turbo=turbo)
        env.reset(seed=0)
        ends = [env.step(12)[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]


@modes
def test_a_saved_state_continues_exactly(turbo: bool) -> None:
    env = PetriVectorEnv(3, turbo=turbo)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 13, (80, 3))
    for action in actions[:40]:
        env.step(action)
    state = env.save_state()
    copied = pickle.loads(pickle.dumps(env))
    first = [env.step(action)[0] for action in actions[40:]]
    ahead = env.step(actions[0])[4]["clock"]
    env.load_state(state)
    assert np.array_equal(first, [env.step(action)[0] for action in actions[40:]])
    assert np.array_equal(first, [copied.step(action)[0] for action in actions[40:]])
    assert np.array_equal(ahead, copied.step(actions[0])[4]["clock"])
    with pytest.raises(HotloopError, match="environment with other settings"):
        PetriVectorEnv(3, turbo=not turbo).load_state(state)


def test_another_batch_size_or_net_compiles_nothing_new() -> None:
    net = job_shop([[0, 1], [1, 0]], [[3, 4], [2, 5]])
    for env in (PetriVectorEnv(1), PetriVectorEnv(7, autoreset_mode="SameStep"), PetriVectorEnv(2, net=net)):
        env.reset(seed=0)
        env.step(np.zeros(env.num_envs, dtype=np.int64))
    assert len(kernels.step_rows.signatures) == 1  # type: ignore[attr-defined]
    assert len(kernels.reset_rows.signatures) == 1  # type: ignore[attr-defined]


@numba.njit(nogil=True)
def play(
    code: Any,
    scales: Any,
    state: Any,
    masks: Any,
    seen: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    elapsed: Any,
    actions: Any,
) -> float:
    earned = 0.0
    for step in range(len(actions)):
        ends = kernels.step_row(
            code, scales, state, masks, seen, rewards, terminated, truncated, elapsed, 0, actions[step]
        )
        earned += rewards[0]
        if ends:
            kernels.reset_row(code, scales, state, masks, seen, 0)
            elapsed[0] = 0
    return earned


@pytest.mark.long
def test_a_row_can_be_stepped_inside_another_kernel() -> None:
    actions = np.random.default_rng(0).integers(0, 13, 300)
    outside, inside = (PetriVectorEnv(1, wafers=2, autoreset_mode="SameStep") for _ in range(2))
    outside.reset(seed=0)
    inside.reset(seed=0)
    earned = sum(float(outside.step(action[None])[1][0]) for action in actions)
    buffers = (inside.observations, inside.rewards, inside.terminated, inside.truncated, inside.elapsed)
    program = inside.program
    assert play(program.code, program.scales, inside.state, inside.masks, *buffers, actions) == earned
    assert np.array_equal(inside.observations, outside.observations)
    assert np.array_equal(inside.state, outside.state)


@modes
def test_pictures_change_with_the_state_and_are_the_same_in_both_modes(turbo: bool) -> None:
    env = PetriEnv(turbo=turbo, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(0)
    after = env.render()
    assert before is not None and after is not None
    assert before.shape == after.shape == (360, 640, 3)
    assert (before != after).any()
    other = PetriEnv(turbo=not turbo, render_mode="rgb_array")
    other.reset(seed=0)
    assert np.array_equal(before, np.asarray(other.render()))


def test_any_net_can_be_drawn() -> None:
    growing = Net(
        "odd", (Place("p"), Place("r", tokens=2, kind="resource")), (Transition("t", [], {"p": 2}),)
    )
    never = Net(
        "never", (Place("p"), Place("q")), (Transition("t", ["p"], ["q"]), Transition("u", ["q"], ["p"]))
    )
    for net in (job_shop([[0, 1], [1, 0]], [[3, 4], [2, 5]]), growing, never):
        env = PetriEnv(net=net, render_mode="rgb_array")
        env.reset(seed=0)
        env.step(0)
        picture = env.render()
        assert picture is not None and picture.dtype == np.uint8 and picture.std() > 5


def test_a_maskable_learner_takes_the_masks() -> None:
    from sb3_contrib import MaskablePPO

    env = PetriEnv(wafers=2, config=PetriConfig(on_disabled="error"))
    model = MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(128)
    assert model.num_timesteps == 128


@modes
def test_the_plain_path_names_its_regions(turbo: bool) -> None:
    env = PetriVectorEnv(2, turbo=turbo, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    default.start(memory=False)
    try:
        for _ in range(3):
            env.step(np.array([12, 12]))
        calls = {name: stats.calls for name, stats in default.stats().items()}
    finally:
        default.stop()
    expected = {} if turbo else {"env_fire": 3, "env_enabled_set": 3, "env_observation": 3}
    assert {name: count for name, count in calls.items() if name.startswith("env_")} == expected


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: PetriConfig(time_limit_s=0), "time_limit_s=0"),
        (lambda: PetriConfig(max_steps=None), "max_steps=None"),  # type: ignore[arg-type]
        (lambda: PetriConfig(finish_bonus=float("nan")), "finish_bonus=nan"),
        (lambda: PetriConfig(on_disabled="ignore"), "on_disabled='ignore'"),  # type: ignore[arg-type]
        (lambda: PetriVectorEnv(0), "num_envs=0"),
        (lambda: PetriVectorEnv(1, turbo="fast"), "turbo='fast' is not a bool"),  # type: ignore[arg-type]
        (lambda: PetriVectorEnv(1, autoreset_mode="never"), "autoreset_mode='never'"),
        (lambda: PetriVectorEnv(1, render_mode="human"), "render_mode='human'"),
        (lambda: PetriVectorEnv(1, wafers=3, net=cluster_tool(3)), "wafers=3 applies to the cluster tool"),
        (lambda: PetriVectorEnv(1, net=_marked(70), config=PetriConfig(token_limit=64)), "token_limit=64"),
        (lambda: PetriVectorEnv(1, net=_marked(500_000)), "may hold 500,000 tokens"),
    ],
)
def test_bad_settings_are_one_clear_error(make: object, word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        make()


def _marked(tokens: int) -> Net:
    return Net("n", (Place("p", tokens=tokens),), (Transition("t", ["p"], []),))


def test_minus_the_makespan_is_the_return_of_a_job_shop() -> None:
    net = job_shop([[0, 1], [1, 0]], [[3, 4], [2, 5]])
    env = PetriEnv(net=net, config=makespan_config(net))
    _, info = env.reset(seed=0)
    rng = np.random.default_rng(0)
    earned, ended = 0.0, False
    while not ended:
        _, reward, ended, truncated, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        earned += reward
        assert not truncated
    assert earned == -info["clock"]
    assert info["clock"] >= 8
