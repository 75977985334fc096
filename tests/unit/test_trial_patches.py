"""Every patch leaves the process as it found it, changes what it says, and its line is Python that works."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.boost.bootstrap import BoostPatch
from hotloop.instrument.trial_patch import TrialPatch, live_objects
from hotloop.instrument.trial_patches import (
    NAMES,
    DeferredCollection,
    EnvChecks,
    Logging,
    SwitchInterval,
    all_patches,
)
from tests.processes.scripts import environment

torch = pytest.importorskip("torch")
gymnasium = pytest.importorskip("gymnasium")

from hotloop.instrument import trial_patches_torch as ours  # noqa: E402


@pytest.fixture
def model() -> Iterator[Any]:
    """A network with a convolution, trained for two steps by Adam."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer, 2)
    distribution = torch.distributions.Distribution
    checked = distribution._validate_args  # some libraries switch it off when they are imported
    distribution.set_default_validate_args(True)
    yield net, optimizer
    distribution.set_default_validate_args(checked)
    torch.set_num_threads(threads)


def train(net: Any, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        images = torch.linspace(-1, 1 + step, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
        optimizer.zero_grad()
        net(images).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()


def state(net: Any, optimizer: Any) -> dict[str, Any]:
    """Everything a patch might touch."""
    wrappers = gymnasium.wrappers.common
    return {
        "gc": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0),
        "switch interval": sys.getswitchinterval(),
        "threads": torch.get_num_threads(),
        "denormals": ours.FlushDenormals().flushing(),
        "validation": torch.distributions.Distribution._validate_args,
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "precision": torch.get_float32_matmul_precision(),
        "clip": torch.nn.utils.clip_grad_norm_,
        "steps": (vars(wrappers.PassiveEnvChecker)["step"], vars(wrappers.OrderEnforcing)["step"]),
        "groups": [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        "weights": [(id(p), p.stride(), p.detach().clone().tolist()) for p in net.parameters()],
    }


@pytest.mark.parametrize(
    "kind",
    [
        *(
            DeferredCollection,
            SwitchInterval,
            EnvChecks,
            ours.OneThread,
            ours.FlushDenormals,
            ours.NoValidation,
        ),
        *(
            ours.FusedOptimizer,
            ours.NoAnomalyDetection,
            ours.ClipNorm,
            ours.ChannelsLast,
            ours.MatmulPrecision,
        ),
    ],
)
def test_off_restores_exactly_the_original(kind: type[TrialPatch], model: Any) -> None:
    env = gymnasium.make("CartPole-v1")
    anomaly = kind is ours.NoAnomalyDetection
    torch.autograd.set_detect_anomaly(anomaly)
    other, stop = None, threading.Event()
    if kind is SwitchInterval:
        other = threading.Thread(target=stop.wait)
        other.start()
    if kind is DeferredCollection:
        gc.unfreeze()  # as in a script: what our fixtures froze would keep it from freezing
    try:
        patch = kind()
        assert kind is ours.MatmulPrecision or patch.skip_reason() is None, patch.skip_reason()
        before = state(*model)
        for _ in range(3):
            patch.apply()
            assert state(*model) != before
            patch.undo()
            assert state(*model) == before
    finally:
        stop.set()
        if other is not None:
            other.join()
        torch.autograd.set_detect_anomaly(False)
        env.close()


@pytest.mark.parametrize("kind", [ours.FusedOptimizer, ours.ClipNorm, ours.ChannelsLast, ours.FlushDenormals])
def test_training_gives_the_same_weights_up_to_rounding(kind: type[TrialPatch]) -> None:
    weights = []
    for with_patch in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        patch = kind()
        for _ in range(4):  # switched in the middle of training, as a trial does
            if with_patch:
                assert patch.skip_reason() is None
                patch.apply()
            train(net, optimizer, 3)
            if with_patch:
                patch.undo()
            train(net, optimizer, 2)
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.allclose(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    assert weights[0].std() > 0


def test_fused_is_refused_if_moments_have_other_strides_than_weights(model: Any) -> None:
    _, optimizer = model
    last, fused = ours.ChannelsLast(), ours.FusedOptimizer()
    assert last.skip_reason() is None and fused.skip_reason() is None
    last.apply()  # the kernel would mix up the elements
    fused.apply()
    mine = optimizer.param_groups[0]
    assert not mine["fused"]
    fused.undo()
    last.undo()
    fused.apply()
    assert mine["fused"]
    fused.undo()
    assert not mine["fused"]
    assert fused.name in last.conflicts and last.name in fused.conflicts


def test_env_checks_are_bypassed_and_the_steps_are_the_same() -> None:
    results = []
    for with_patch in (False, True):
        env = gymnasium.make("CartPole-v1")
        patch = EnvChecks()
        assert patch.skip_reason() is None
        if with_patch:
            patch.apply()
            with pytest.raises(gymnasium.error.ResetNeeded):
                env.step(0)  # still an error on an env that was never reset
        env.reset(seed=0)
        results.append([env.step(i % 2)[0].tolist() for i in range(8)])
        if with_patch:
            patch.undo()
        env.close()
    assert results[0] == results[1]


def test_patches_without_effect_say_why(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])  # pytest may have more
    assert ours.OneThread().skip_reason() == "torch already uses one thread"
    assert SwitchInterval().skip_reason() == "the script has one Python thread"
    assert ours.NoAnomalyDetection().skip_reason() == "anomaly detection is off"
    gc.disable()
    try:
        assert DeferredCollection().skip_reason() == "the garbage collector is already off"
    finally:
        gc.enable()
    torch.distributions.Distribution.set_default_validate_args(False)
    assert ours.NoValidation().skip_reason() is not None


def test_every_patch_is_named_explained_and_its_line_compiles() -> None:
    made = [*all_patches(), BoostPatch()]  # added in the processes of a trial
    assert [patch.name for patch in made] == list(NAMES) and len(made) >= 8
    for patch in made:
        assert patch.why.endswith(".")
        needs = "\n".join(patch.needs)
        text = (
            patch.line
            if patch.place in ("imports", "training") or "model =" in patch.line
            else f"f({patch.line})"
        )
        ast.parse(f"{needs}\n{text}")


def test_log_rows_are_written_later_and_none_is_lost(tmp_path: Path) -> None:
    logger = pytest.importorskip("stable_baselines3.common.logger")
    log = logger.configure(str(tmp_path), ["csv"])
    patch = Logging()
    assert patch.skip_reason() is None

    def row(number: int) -> None:
        log.record("number", number)
        log.dump(number)

    row(0)
    dump = logger.Logger.dump
    patch.apply()
    row(1)
    row(2)
    assert (tmp_path / "progress.csv").read_text().split() == ["number", "0"]
    patch.undo()
    assert logger.Logger.dump is dump
    row(3)
    patch.apply()
    row(4)
    log.close()  # while it is on: what was kept comes first
    patch.undo()
    assert (tmp_path / "progress.csv").read_text().split() == ["number", "0", "1", "2", "3", "4"]


SB3 = """
import sys
from stable_baselines3 import PPO
{lines}
model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, seed=0, device="cpu", {model})
weights = lambda: sum(float(p.detach().square().sum()) for p in model.policy.parameters())
before = weights()
from hotloop.instrument.trial_patches import all_patches
patches = [patch for patch in all_patches() if patch.skip_reason() is None]
print(*(patch.name for patch in patches))
if "switched" in sys.argv:
    for patch in patches:
        for _ in range(2):
            patch.apply()
            model.learn(64, reset_num_timesteps=False)
            patch.undo()
else:
    for _ in range(2 * int(sys.argv[1])):
        model.learn(64, reset_num_timesteps=False)
print(weights(), before)
"""


def sb3(lines: str, model: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SB3.format(lines=lines, model=model), *words],
        env=environment("auto", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE"),  # no spinning
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_at_least_six_apply_to_an_unmodified_sb3_script_and_none_changes_what_it_learns() -> None:
    pytest.importorskip("stable_baselines3")
    names, weights = sb3("", "", "switched")
    assert len(names.split()) >= 6, names
    _, plain = sb3("", "", str(len(names.split())))
    (switched, start), (as_it_is, same_start) = (map(float, line.split()) for line in (weights, plain))
    assert start == same_start and as_it_is != start
    assert abs(switched - as_it_is) < 0.01 * abs(as_it_is - start)  # of what was learned


@pytest.mark.long
def test_the_lines_do_what_the_patches_do() -> None:
    pytest.importorskip("stable_baselines3")
    chosen = [
        t for t in all_patches() if t.place in ("imports", "training") and t.name not in ("matmul_precision",)
    ]
    lines = "\n".join("\n".join([*patch.needs, patch.line]) for patch in chosen)
    names, _ = sb3(lines, "policy_kwargs=dict(optimizer_kwargs=dict(fused=True))", "1")
    assert not {"gc", "env_checks", "threads", "denormals", "validation", "fused_optimizer"} & {
        *names.split()
    }


def test_live_objects_are_those_of_a_class_and_its_subclasses() -> None:
    class Base:
        pass

    class Sub(Base):
        pass

    kept = [Base(), Sub(), Sub()]
    assert {id(one) for one in live_objects(Base)} == {id(one) for one in kept}
    assert len(live_objects(Sub)) == 2
    assert live_objects(Sub, Base) != []
    kept.clear()
    assert live_objects(Base) == []
