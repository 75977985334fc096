"""The Petri net without training: profiles both modes, then compares turbo on and off in fresh processes.

    python profile_turbo_mode.py --steps 20000

Each run takes random legal actions, the same ones in both modes. Other arguments go to `hotloop compare`,
such as --budget 2m or --detailed.
"""

import argparse
import shlex
import sys
import tempfile

import numpy as np

import hotloop
from hotloop._util.console import guarded
from hotloop.cli import compare
from hotloop.cli.main import main, read_arguments

_choose, _step = hotloop.profile("policy_forward"), hotloop.profile("env_step")


def play(turbo: bool, steps: int, envs: int, wafers: int, seed: int) -> None:
    from hotloop.rl.envs.petri.env import PetriVectorEnv

    nets = PetriVectorEnv(envs, wafers=wafers, turbo=turbo, autoreset_mode="SameStep")
    _, infos = nets.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps // envs):
        with _choose:
            wishes = rng.random((envs, nets.single_action_space.n)) * infos["action_mask"]
            actions = wishes.argmax(axis=1)
        with _step:
            infos = nets.step(actions)[-1]
        hotloop.progress(env_steps=envs)


def show(mode: str, given: argparse.Namespace) -> None:
    """Record one run in this process and print its regions."""
    play(mode == "on", given.envs, given.envs, given.wafers, given.seed)  # compiles
    with tempfile.TemporaryDirectory() as folder:
        hotloop.start(f"{folder}/turbo-{mode}")
        try:
            play(mode == "on", given.steps, given.envs, given.wafers, given.seed)
        finally:  # before its folder is removed
            hotloop.stop()
        print(f"turbo {mode}, {given.steps} env steps", flush=True)
        print(hotloop.summary(), "\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps per run")
    parser.add_argument("--envs", type=int, default=16, help="number of parallel nets")
    parser.add_argument("--wafers", type=int, default=25, help="wafers per episode")
    parser.add_argument(
        "--only", choices=["on", "off"], help="run one mode in this process, without comparing"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the actions")
    given, rest = parser.parse_known_args()
    if given.envs < 1 or given.wafers < 1 or given.steps < given.envs:
        print(
            f"--steps {given.steps} --envs {given.envs} --wafers {given.wafers} leave nothing to play; use "
            "at least 1 net, 1 wafer and as many steps as nets.",
            file=sys.stderr,
        )
        sys.exit(2)
    if given.only:

        def play_one() -> int:
            play(given.only == "on", given.steps, given.envs, given.wafers, given.seed)
            return 0

        sys.exit(guarded(play_one))
    size = f"--steps {given.steps} --envs {given.envs} --wafers {given.wafers} --seed {{seed}}"
    command = f"{shlex.join([sys.executable, __file__])} {size} --only"
    words = ["--a", f"{command} off", "--b", f"{command} on", *rest]

    def show_both() -> int:
        asked = read_arguments(compare, "compare", words)
        if asked is not None:  # None: help was printed
            compare.check(asked)  # a mistake is said before anything runs
        if asked is not None and not asked.json:
            show("off", given)
            show("on", given)
            print("A is turbo off, B is turbo on:", flush=True)
        return 0

    sys.exit(guarded(show_both) or main(["compare", *words]))
