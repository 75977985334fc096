"""`hotloop run` on unmodified scripts: worker processes, how scripts end, unusual ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.stats import by_name
from tests.cli import hotloop as run_verb
from tests.processes.scripts import environment

HOTLOOP = Path(sys.executable).parent / "hotloop"

TINY = """
import sys
import gymnasium
env = gymnasium.make("CartPole-v1")
env.reset(seed=0)
total = 0.0
for i in range(int(sys.argv[1])):
    observation, reward, terminated, truncated, info = env.step(i % 2)
    total += float(observation.sum())
    if terminated or truncated:
        env.reset()
print("total", total)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def launch(folder: Path, *words: str, core: str = "auto", **env: str) -> subprocess.CompletedProcess[str]:
    return run_verb("run", *words, cwd=folder, env=environment(core, **env))


def test_an_unmodified_script_is_recorded_and_explained(folder: Path, core: str) -> None:
    plain = subprocess.run([sys.executable, "tiny.py", "5000"], cwd=folder, capture_output=True, text=True)
    done = launch(folder, "--capture", "cap", "tiny.py", "5000", core=core)
    assert done.returncode == 0, done.stderr
    assert plain.stdout.strip() in done.stdout  # same numbers to the last digit
    assert "Where the time goes" in done.stdout and "5,000 env steps" in done.stdout
    capture = hotloop.load(folder / "cap")
    stats = by_name(capture.tree)
    assert (
        stats["env_step"].calls
        == stats["CartPoleEnv.step"].calls
        == stats["PassiveEnvChecker.step"].calls
        == 5000
    )
    assert not {"TimeLimit.step", "OrderEnforcing.step"} & set(stats)  # thin: part of `env_step`
    assert capture.progress.env_steps == 5000
    assert capture.progress.episodes == stats["env_reset"].calls - 1
    assert capture.progress.mean_return == capture.progress.mean_length
    assert capture.command[1:] == ["tiny.py", "5000"]
    assert capture.facts["exit_status"] == "finished"
    (step,) = [c for c in capture.tree.children if c.name == "env_step"]
    assert step.site.endswith("tiny.py:8")
    assert capture.tree.own_ns < 0.3 * capture.wall_ns  # a few per cent where nothing else runs


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["tiny.py", "20"], ["tiny.py", "20"]),
        (["-m", "tiny", "20"], ["-m", "tiny", "20"]),
        (["--", sys.executable, "tiny.py", "20"], ["tiny.py", "20"]),
        (["--capture", "cap", "--", sys.executable, "-u", "tiny.py", "20"], ["-u", "tiny.py", "20"]),
    ],
)
def test_the_ways_to_name_a_script(folder: Path, words: list[str], command: list[str]) -> None:
    done = launch(folder, *words)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("cap/capture.json" if "cap" in words else "hotloop-runs/*/capture.json")
    assert json.loads(file.read_text())["command"][1:] == command
    assert hotloop.load(file.parent).progress.env_steps == 20


def test_a_console_script_is_recorded(folder: Path) -> None:
    script = folder / "my-train"
    script.write_text(f"#!{sys.executable}\n{TINY}")
    script.chmod(0o755)
    done = launch(folder, "--capture", "cap", "--", "./my-train", "30")
    assert done.returncode == 0, done.stderr
    assert hotloop.load(folder / "cap").progress.env_steps == 30


def test_pytest_is_recorded(folder: Path) -> None:
    (folder / "test_it.py").write_text(
        "import gymnasium\n"
        "def test_env():\n"
        "    env = gymnasium.make('CartPole-v1')\n"
        "    env.reset()\n"
        "    env.step(0)\n"
    )
    done = launch(folder, "--capture", "cap", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert hotloop.load(folder / "cap").progress.env_steps == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No script to run"),
        (["tinny.py"], "The script 'tinny.py' does not exist; did you mean 'tiny.py'?"),
        (["--", "no-such-command"], "'no-such-command' is neither a script nor a command"),
        (["--", sys.executable, "-I", "tiny.py", "3"], "-I ignores PYTHONPATH"),
        (["--", sys.executable, "-sE", "tiny.py", "3"], "run it without: hotloop run tiny.py 3"),
        (["--", sys.executable, "-S", "tiny.py", "3"], "-S skips sitecustomize"),
        (["--", "./isolated", "3"], "its first line is #!"),
        (["--capture", "tiny.py", "tiny.py", "3"], "cannot be written"),
        (["--capture", "full", "tiny.py", "3"], "already has a capture"),
    ],
)
def test_requests_that_cannot_work_are_one_sentence(folder: Path, words: list[str], says: str) -> None:
    isolated = folder / "isolated"
    isolated.write_text(f"#!{sys.executable} -E\nprint(1)\n")
    isolated.chmod(0o755)
    (folder / "full").mkdir()
    (folder / "full" / "capture.json").write_text("{}")
    done = launch(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("end", "ending"),
    [
        ("raise ValueError('boom')", "exit code 1"),
        ("sys.exit(7)", "exit code 7"),
        ("import os; os._exit(9)", "exit code 9"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
    ],
)
def test_a_script_that_fails_is_reported_up_to_its_end(folder: Path, end: str, ending: str) -> None:
    (folder / "fails.py").write_text(TINY + end)
    done = launch(folder, "--capture", "cap", "fails.py", "100")
    assert done.returncode == 5
    assert f"the script {'was' if 'by' in ending else 'ended with'} {ending}" in done.stderr
    assert "Where the time goes" in done.stdout
    capture = hotloop.load(folder / "cap")
    assert capture.facts["exit_status"] == ending
    assert capture.progress.env_steps == 100


def test_a_script_that_came_no_further_than_its_arguments_gets_one_line(folder: Path) -> None:
    (folder / "wrong.py").write_text(
        "import argparse, numpy\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--steps', required=True)\nparser.parse_args()\n"
    )
    done = launch(folder, "--capture", "cap", "wrong.py", "--stepz", "3")
    assert done.returncode == 5 and done.stdout == ""
    *theirs, ours = done.stderr.splitlines()
    assert theirs[-1].startswith("wrong.py: error: the following arguments are required")
    assert ours == (
        "hotloop: the script ended with exit code 2 before it did anything that hotloop records; "
        "see what was recorded: hotloop report cap"
    )
    assert hotloop.load(folder / "cap").facts["exit_status"] == "exit code 2"


def test_a_module_is_called_by_its_name(folder: Path) -> None:
    (folder / "train_me.py").write_text(TINY)
    done = launch(folder, "--capture", "cap", "-m", "train_me", "100")
    assert done.returncode == 0, done.stderr
    (process,) = hotloop.load(folder / "cap").processes
    assert process.label == "-m train_me"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_is_reported(folder: Path, how: signal.Signals) -> None:
    (folder / "long.py").write_text(TINY.replace("for i", "print('ready', flush=True)\nfor i"))
    process = subprocess.Popen(
        [HOTLOOP, "run", "--capture", "cap", "long.py", "100000000"],
        cwd=folder,
        env=environment("auto"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # a terminal sends Ctrl-C to the whole group
    else:
        process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Where the time goes" in out
    assert hotloop.load(folder / "cap").progress.env_steps > 100


def test_json_keeps_stdout_clean(folder: Path) -> None:
    done = launch(folder, "--capture", "cap", "--json", "tiny.py", "50")
    data = json.loads(done.stdout)
    assert (data["script"]["exit_code"], data["script"]["ending"]) == (0, "finished")
    assert data["script"]["command"][1:] == ["tiny.py", "50"]
    assert data["env_steps"] == 50
    assert "total" in done.stderr


def test_the_users_own_sitecustomize_still_runs(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "sitecustomize.py").write_text("import builtins\nbuiltins.MARK = __file__\n")
    (folder / "look.py").write_text("import sitecustomize\nprint(MARK, sitecustomize.__file__)")
    done = launch(folder, "--capture", "cap", "look.py", PYTHONPATH=str(folder / "mine"))
    assert done.stdout.count(str(folder / "mine" / "sitecustomize.py")) == 2, done.stdout + done.stderr


def test_recording_begins_without_numpy_and_leaves_sys_path_alone(folder: Path) -> None:
    (folder / "look.py").write_text(
        "import sys\nprint('numpy' in sys.modules, [p for p in sys.path if 'startup' in p])"
    )
    done = launch(folder, "--capture", "cap", "look.py")
    assert "False []" in done.stdout


def test_scripts_that_trace_or_replace_things_are_unharmed(folder: Path) -> None:
    (folder / "odd.py").write_text(
        textwrap.dedent(
            """
            import sys, gymnasium
            calls = []
            sys.setprofile(lambda frame, event, arg: calls.append(event))
            env = gymnasium.make("CartPole-v1")
            original = gymnasium.Env.step
            gymnasium.wrappers.TimeLimit.step = lambda self, action: self.env.step(action)
            env.reset(seed=0)
            print(env.step(0)[1], len(calls) > 0, gymnasium.Env.step is original)
            sys.setprofile(None)
            """
        )
    )
    done = launch(folder, "--capture", "cap", "--detailed", "odd.py")
    assert done.returncode == 0, done.stderr
    assert "1.0 True True" in done.stdout


def test_workers_of_every_kind_join(folder: Path) -> None:
    (folder / "workers.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, subprocess, sys
            import gymnasium

            def work(n):
                env = gymnasium.make("CartPole-v1")
                env.reset(seed=0)
                for _ in range(n):
                    if env.step(0)[2]:
                        env.reset()

            if __name__ == "__main__":
                for method in ("fork", "spawn"):
                    process = multiprocessing.get_context(method).Process(target=work, args=(10,))
                    process.start(); process.join()
                if os.fork() == 0:
                    work(10)
                    os.kill(os.getpid(), 9)
                os.wait()
                subprocess.run([sys.executable, "tiny.py", "10"], check=True)
            """
        )
    )
    done = launch(folder, "--capture", "cap", "workers.py")
    assert done.returncode == 0, done.stderr
    capture = hotloop.load(folder / "cap")
    assert by_name(capture.tree)["CartPoleEnv.step"].calls == 40
    stepping = [p for p in capture.processes if "CartPoleEnv.step" in by_name(p.threads[0].root)]
    assert len(stepping) == 4
    assert sum(not p.closed for p in stepping) == 1  # the killed one


def test_a_vector_env_counts_its_rows_and_no_resets(folder: Path) -> None:
    (folder / "vector.py").write_text(
        textwrap.dedent(
            """
            import sys, gymnasium, numpy as np
            if __name__ == "__main__":
                envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode=sys.argv[1])
                envs.reset(seed=0)
                steps = ended = 0
                waiting = np.zeros(3, dtype=bool)
                for i in range(120):
                    _, _, terminated, truncated, _ = envs.step(np.full(3, i % 2))
                    steps += 3 - int(waiting.sum())
                    waiting = terminated | truncated
                    ended += int(waiting.sum())
                envs.close()
                print("expected", steps, ended)
            """
        )
    )
    for mode in ("sync", "async"):
        done = launch(folder, "--capture", mode, "vector.py", mode)
        assert done.returncode == 0, done.stderr
        steps, ended = map(int, done.stdout.split("expected ")[1].split()[:2])
        capture = hotloop.load(folder / mode)
        assert (capture.progress.env_steps, capture.progress.episodes) == (steps, ended)
        stats = by_name(capture.tree)
        if mode == "async":
            assert stats["ipc_wait"].category == "wait"
            assert len(capture.processes) == 4


def test_options_add_their_files(folder: Path) -> None:
    (folder / "learn.py").write_text(
        textwrap.dedent(
            """
            import time, torch
            net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            end = time.time() + 3.2
            updates = 0
            while time.time() < end:
                loss = net(torch.ones(4, 8)).pow(2).mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                updates += 1
                time.sleep(0.005)
            print("updates", updates)
            """
        )
    )
    words = ("--capture", "cap", "--detailed", "--torch-profile", "--modules", "--timeline", "learn.py")
    done = launch(folder, *words)
    assert done.returncode == 0, done.stderr
    updates = int(done.stdout.split("updates ")[1].split()[0])
    capture = hotloop.load(folder / "cap")
    stats = by_name(capture.tree)
    assert (
        stats["backward"].calls == stats["optimizer_step"].calls == stats["learner_forward"].calls == updates
    )
    assert capture.progress.updates == updates
    assert stats["Linear"].calls == stats["Tanh"].calls == updates  # --modules
    assert "cumulative" in (folder / "cap/detailed.txt").read_text()
    assert json.loads((folder / "cap/torch-trace.json").read_text())["traceEvents"]
    assert capture.threads[0].events
