"""Does the first advice of `hotloop run` name what is slow? Checked on training scripts with a known defect.

    python benchmarks/truth.py --set development [--cases a,b] [--rounds 5] [--quick] [--peers all]
    python benchmarks/truth.py --again DIR --rounds 0 --quick    # captures kept by --keep DIR, with new rules

Each case in tests/truth has a slow script and a fixed twin, or a clean script. slow.py and fixed.py are run
in random pairs, which gives the speed-up of the fix. hotloop records slow.py, and tests/truth/judge.py judges
the report: is the defect the first recommendation, among the first three, or absent; is the predicted gain
right; does a clean script get advice that it does not need. Other profilers are judged by the line or
function that they list first. Run on a quiet machine. Ratios are kept in ratios.json in the folder given by
--keep, and later runs add pairs until the interval is within 3 %.

For the held-out cases only a summary is printed: rules must not be tuned by them.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import os
import pstats
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.truth import judge as judging  # noqa: E402

from hotloop.machine.facts import cpu_name  # noqa: E402

CASES = ROOT / "tests/truth"
BIN = Path(sys.executable).parent
LIMIT_S = 1500  # for one run of a script
# Functions of the script with more of the whole time than this hold the training loop.
WHOLE = 0.95
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # would hide a case about threads
COMPUTE_THREADS = ""  # "": as many as each library chooses
CLOCK = "wall"  # of the scripts whose speeds are compared


@dataclass(frozen=True)
class Case:
    """A folder of the corpus."""

    name: str
    folder: Path
    truth: dict[str, Any]

    @property
    def clean(self) -> bool:
        return not (self.folder / "slow.py").exists()

    @property
    def script(self) -> str:
        return "clean.py" if self.clean else "slow.py"

    @property
    def source(self) -> str:
        return (self.folder / self.script).read_text(encoding="utf-8")

    def missing(self) -> list[str]:
        """Packages that the case needs and that are not installed."""
        return [name for name in self.truth.get("needs", []) if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class Row:
    """Everything found out about one case."""

    case: Case
    ratio: judging.Ratio | None
    judgement: judging.Judgement | None
    prediction: judging.Prediction | None
    problems: tuple[str, ...]  # with the case or a tool
    miscounts: tuple[str, ...]  # env steps and updates that hotloop and the script count differently
    rate_errors: dict[str, float]
    slow_down: float | None  # speed of the recorded run over that of plain runs, minus 1; None: no plain runs
    peers: dict[str, tuple[str, bool]]  # tool -> what it put first, whether that is the defect


def load_cases(which: str, names: list[str]) -> list[Case]:
    """The cases of a set, in order of their names."""
    folders = sorted(path.parent for path in (CASES / which).glob("*/truth.toml"))
    unknown = set(names) - {folder.name for folder in folders}
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))} in {CASES / which}; see its folders")
    return [
        Case(folder.name, folder, tomllib.loads((folder / "truth.toml").read_text(encoding="utf-8")))
        for folder in folders
        if not names or folder.name in names
    ]


class RunError(Exception):
    """A script or a tool failed; the message says how."""


def plain_environment() -> dict[str, str]:
    """The environment of all runs, with as many compute threads as --threads says."""
    kept = {key: value for key, value in os.environ.items() if key not in THREADS}
    return kept | {key: COMPUTE_THREADS for key in THREADS if COMPUTE_THREADS}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a scratch folder, where scripts may write."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{Path(command[0]).name} ... took more than {LIMIT_S} s") from None
    if done.returncode:
        raise RunError(f"exit code {done.returncode}: {' '.join(done.stderr.split())[-300:]}")
    return done


def last_line(stdout: str) -> dict[str, Any]:
    """The JSON object that a script prints last."""
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            missing = {"env_steps", "updates", "units_per_s", "checksum"} - set(found)
            if missing:
                raise RunError(f"the script's last line has no {', '.join(sorted(missing))}")
            return dict(found)
    raise RunError("the script printed no JSON object")


def run_script(case: Case, script: str, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        clock = [str(CASES / "busy_clock.py"), CLOCK] if CLOCK != "wall" else []
        done = run([sys.executable, *clock, str(case.folder / script), *arguments], Path(name))
    return last_line(done.stdout)


class Ratios:
    """Pairs of speeds in a file; those of earlier runs count as long as the scripts have not changed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def pairs(self, case: Case, arguments: list[str]) -> list[tuple[float, float]]:
        entry = self.kept.get(self._key(case, arguments), {})
        if entry.get("scripts") != self._scripts(case):
            return []
        return [(slow, fixed) for slow, fixed in entry["pairs"]]

    def add(self, case: Case, arguments: list[str], pair: tuple[float, float]) -> None:
        pairs = [*self.pairs(case, arguments), pair]
        self.kept[self._key(case, arguments)] = {"scripts": self._scripts(case), "pairs": pairs}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.kept, indent=1))

    def _key(self, case: Case, arguments: list[str]) -> str:
        threads = [f"OMP_NUM_THREADS={COMPUTE_THREADS}"] if COMPUTE_THREADS else []
        clock = [f"{CLOCK} clock"] if CLOCK != "wall" else []
        return " ".join([*clock, *threads, f"{case.folder.parent.name}/{case.name}", *arguments])

    def _scripts(self, case: Case) -> str:
        texts = [(case.folder / name).read_bytes() for name in ("slow.py", "fixed.py")]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def measure(
    case: Case, arguments: list[str], rounds: int, ratios: Ratios, problems: list[str]
) -> judging.Ratio | None:
    """Run slow.py and fixed.py in random pairs until the interval is narrow or the rounds are used up."""
    for _ in range(rounds):
        so_far = judging.measured_ratio(ratios.pairs(case, arguments))
        if so_far is not None and so_far.narrow:
            break
        order = random.sample(["slow.py", "fixed.py"], 2)
        found = {script: run_script(case, script, arguments) for script in order}
        slow, fixed = found["slow.py"], found["fixed.py"]
        for problem in judging.work_differences(slow, fixed, case.truth["same_results"]):
            if problem not in problems:
                problems.append(problem)
        ratios.add(case, arguments, (slow["units_per_s"], fixed["units_per_s"]))
    return judging.measured_ratio(ratios.pairs(case, arguments))


def record(case: Case, arguments: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the script printed while hotloop recorded it, and hotloop's report."""
    hotloop, capture = str(BIN / "hotloop"), str(folder / "capture")
    scratch = folder / "scratch"
    scratch.mkdir()
    done = run([hotloop, "run", "--capture", capture, str(case.folder / case.script), *arguments], scratch)
    reported = run([hotloop, "report", capture, "--json"], folder)
    return last_line(done.stdout), json.loads(reported.stdout)


def judge_case(case: Case, arguments: list[str], given: argparse.Namespace, ratios: Ratios) -> Row:
    problems = judging.truth_problems(case.truth, None if case.clean else case.source)
    problems += [f"needs {name}, which is not installed" for name in case.missing()]
    nothing = Row(case, None, None, None, tuple(problems), (), {}, None, {})
    if problems:
        return nothing
    ratio = None
    try:
        if not case.clean:
            ratio = measure(case, arguments, given.rounds, ratios, problems)
        with tempfile.TemporaryDirectory() as name:
            if given.again is not None:
                script, report = kept_capture(given.again / case.name)
            else:
                script, report = record(case, arguments, Path(name))
            if given.keep is not None:
                keep_capture(Path(name), given.keep / case.name, script, report)
    except RunError as error:
        return dataclasses.replace(nothing, ratio=ratio, problems=(*problems, str(error)))
    judgement = judging.judge(case.truth, case.source, report, case.script)
    peers = {}
    for name in given.peers if not case.clean else []:
        try:
            peers[name] = PEERS[name](case, arguments)
        except RunError as error:
            problems.append(f"{name}: {error}")
    plain = [] if case.clean else [slow for slow, _ in ratios.pairs(case, arguments)]
    return Row(
        case,
        ratio,
        judgement,
        judging.prediction(judgement.hit, ratio),
        tuple(problems),
        tuple(judging.counter_differences(script, report)),
        judging.rate_errors(case.truth, script, report),
        script["units_per_s"] / sorted(plain)[len(plain) // 2] - 1 if plain else None,
        peers,
    )


def keep_capture(made: Path, kept: Path, script: dict[str, Any], report: dict[str, Any]) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copytree(made / "capture", kept / "capture")
    (kept / "report.json").write_text(json.dumps(report))
    (kept / "script.json").write_text(json.dumps(script))


def kept_capture(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the script printed when a capture was kept, and what hotloop reports about that capture now."""
    if not (folder / "script.json").exists():
        raise RunError(f"no capture was kept in {folder}")
    reported = run([str(BIN / "hotloop"), "report", str(folder / "capture"), "--json"], folder)
    return json.loads((folder / "script.json").read_text()), json.loads(reported.stdout)


# Other profilers: each returns what it puts first, as text, and whether that is the defect.


def cprofile_functions(case: Case, arguments: list[str]) -> dict[tuple[str, int, str], tuple[float, float]]:
    """(file, line, function) -> own and cumulative seconds."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out.prof"
        script = str(case.folder / case.script)
        run([sys.executable, "-m", "cProfile", "-o", str(out), script, *arguments], Path(name))
        stats: Any = pstats.Stats(str(out))
    return {key: (value[2], value[3]) for key, value in stats.stats.items()}


def cprofile_by_own_time(case: Case, arguments: list[str]) -> tuple[str, bool]:
    functions = cprofile_functions(case, arguments)
    file, line, function = max(functions, key=lambda key: functions[key][0])
    return judged_function(case, file, line, function)


def cprofile_by_cumulative_time(case: Case, arguments: list[str]) -> tuple[str, bool]:
    """The first of the script's functions below those that hold the whole training loop."""
    functions = cprofile_functions(case, arguments)
    whole = max(cumulative for _, cumulative in functions.values())
    inner = {
        key: cumulative
        for key, (_, cumulative) in functions.items()
        if Path(key[0]).name == case.script
        and key[2] not in ("<module>", "main")
        and cumulative < WHOLE * whole
    }
    if not inner:
        return "no function of the script", False
    return judged_function(case, *max(inner, key=lambda key: inner[key]))


def judged_function(case: Case, file: str, line: int, function: str) -> tuple[str, bool]:
    own = Path(file).name == case.script
    shown = f"{function} ({Path(file).name}:{line})" if line else function
    return shown, judging.function_is_found(case.truth, case.source, function, line if own else None)


def py_spy(case: Case, arguments: list[str]) -> tuple[str, bool]:
    """The line of the script, innermost in the stack, with most samples."""
    program = shutil.which("py-spy", path=f"{BIN}:{os.environ['PATH']}")
    if program is None:
        raise RunError("not installed (pip install py-spy)")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out.raw"
        script = str(case.folder / case.script)
        words = [program, "record", "--subprocesses", "--format", "raw", "-o", str(out), "--"]
        run([*words, sys.executable, script, *arguments], Path(name))
        stacks = out.read_text(encoding="utf-8").splitlines()
    samples: Counter[int] = Counter()
    for stack in stacks:
        frames, _, count = stack.rpartition(" ")
        lines = re.findall(rf"\((?:[^()]*/)?{re.escape(case.script)}:(\d+)\)", frames)
        if lines:
            samples[int(lines[-1])] += int(count)
    return judged_line(case, samples)


def scalene(case: Case, arguments: list[str]) -> tuple[str, bool]:
    """The line of the script with most CPU time: Python, native and system."""
    if importlib.util.find_spec("scalene") is None:
        raise RunError("not installed (pip install scalene)")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out.json"
        script = str(case.folder / case.script)
        words = [
            sys.executable,
            "-m",
            "scalene",
            "run",
            "--cpu-only",
            "-o",
            str(out),
            script,
            "---",
            *arguments,
        ]
        run(words, Path(name))
        if not out.exists():
            raise RunError("wrote no profile")
        files = json.loads(out.read_text(encoding="utf-8"))["files"]
    kinds = ("n_cpu_percent_python", "n_cpu_percent_c", "n_sys_percent")
    seconds: Counter[int] = Counter()
    for file, profile in files.items():
        if Path(file).name == case.script:
            for line in profile["lines"]:
                seconds[line["lineno"]] += sum(line[kind] for kind in kinds)
    return judged_line(case, seconds)


def judged_line(case: Case, weights: Counter[int]) -> tuple[str, bool]:
    if not weights:
        return "no line of the script", False
    (line, _), *_ = weights.most_common(1)
    text = case.source.splitlines()[line - 1].strip()
    return f"{line}: {text}", judging.line_is_found(case.truth, case.source, line)


def trace_ml(case: Case, arguments: list[str]) -> tuple[str, bool]:
    """Its verdict, judged by the words of the reason and the next step."""
    program = shutil.which("traceml", path=f"{BIN}:{os.environ['PATH']}")
    if program is None:
        raise RunError("not installed (pip install traceml-ai)")
    with tempfile.TemporaryDirectory() as name:
        script = str(case.folder / case.script)
        done = run([program, "run", script, "--args", *arguments], Path(name))
        files = [file.read_text(encoding="utf-8") for file in Path(name).rglob("final_summary.txt")]
    text = "\n".join([done.stdout, done.stderr, *files])
    said = dict(re.findall(r"\b(Verdict|Why|Next): *([^|\n]*[^|\n ])", text))
    words = " ".join(said.values())
    named = any(re.search(pattern, words, re.IGNORECASE) for pattern in case.truth["answers"])
    return said.get("Verdict", "no verdict"), named


PEERS: dict[str, Callable[[Case, list[str]], tuple[str, bool]]] = {
    "cprofile-own": cprofile_by_own_time,
    "cprofile-cumulative": cprofile_by_cumulative_time,
    "py-spy": py_spy,
    "scalene": scalene,
    "traceml": trace_ml,
}


def peers_of(words: str) -> list[str]:
    """The tools named on the command line; `cprofile` means both ways to read its profile."""
    names: list[str] = []
    for word in filter(None, words.split(",")):
        found = [name for name in PEERS if word == "all" or name == word or name.startswith(f"{word}-")]
        if not found:
            raise SystemExit(f"no peer {word!r}; there are {', '.join(PEERS)}, cprofile and all")
        names += [name for name in found if name not in names]
    return names


def few_words(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def print_row(widths: Sequence[int], cells: Sequence[str]) -> None:
    texts = (few_words(cell, width).ljust(width) for width, cell in zip(widths, cells, strict=True))
    print(" ".join(texts).rstrip(), flush=True)


def interval_text(value: float, ends: judging.Prediction | judging.Ratio) -> str:
    return f"{value:.2f} [{ends.low:.2f}, {ends.high:.2f}]"


def position_text(row: Row) -> str:
    judgement = row.judgement
    if judgement is None:
        return "failed"
    if judgement.clean:
        return f"{len(judgement.false_advice)} false" if judgement.false_advice else "none"
    if judgement.hit is not None:
        return f"{judgement.hit.position} by {judgement.hit.how}"
    return "absent (option)" if judgement.option_hit is not None else "absent"


WIDTHS = (26, 44, 15, 52, 19, 19, 3)
HEAD = ("case", "defect", "hotloop", "first advice", "predicted", "measured", "in")


def print_case(row: Row) -> None:
    """One line of the table."""
    predicted, ratio = row.prediction, row.ratio
    cells = [
        row.case.name,
        row.case.truth["defect"] or "clean",
        position_text(row),
        row.judgement.first_title if row.judgement else "",
        interval_text(predicted.predicted, predicted) if predicted else "",
        interval_text(ratio.value, ratio) if ratio else "",
        "" if predicted is None else "yes" if predicted.inside else "no",
    ]
    print_row(WIDTHS, cells)


def print_notes(rows: list[Row], secret: bool) -> None:
    """Print problems with cases and, unless they are secret, what hotloop got wrong about them."""
    print()
    for row in rows:
        for problem in row.problems:
            print(f"problem with {row.case.name}: {problem}")
        low, high = judging.RATIO_LIMITS
        if row.ratio is not None and not low <= row.ratio.value <= high:
            gives = f"the fix gives {row.ratio.value:.2f}x, not {low} to {high:g}"
            print(f"problem with {row.case.name}: {gives}")
        if secret:
            continue
        for title in row.judgement.false_advice if row.judgement else ():
            print(f"false advice on {row.case.name}: {title}")
        for miscount in row.miscounts:
            print(f"counted differently in {row.case.name}: {miscount}")
        for name, (first, found) in row.peers.items():
            print(f"{name} on {row.case.name}: {'found' if found else 'not found'}, first is {first}")


def print_summary(rows: list[Row]) -> None:
    """One line for each tool."""
    judged = [(row.judgement, row.prediction) for row in rows if row.judgement is not None]
    total = judging.tally(judged)
    median = "unknown" if total.median_error is None else f"{100 * total.median_error:.0f} %"
    print(
        f"\nhotloop: first {total.first}, top 3 {total.top_3}, absent {total.absent} "
        f"of {total.defects} defects; "
        f"{total.false_on_clean} false on {total.clean_with_false} of {total.clean} clean scripts; "
        f"measured ratio inside the interval {total.inside} of {len(total.errors)}, median error {median}"
    )
    agreed = [one.headline_agrees for one, _ in judged if one.headline_agrees is not None]
    print(f"hotloop: headline about the first advice {sum(agreed)} of {len(agreed)}")
    options = sum(one.hit is None and one.option_hit is not None for one, _ in judged)
    print(f"hotloop: found only as an option that changes training: {options}")
    judged_rows = [row for row in rows if row.judgement is not None]
    counted = sum(not row.miscounts for row in judged_rows)
    print(f"hotloop: env steps and updates counted as the script counts {counted} of {len(judged_rows)}")
    errors = [abs(error) for row in rows for error in row.rate_errors.values()]
    if errors:
        near = sum(error <= 0.05 for error in errors)
        print(f"hotloop: rates within 5 % of the script's own {near} of {len(errors)}")
    if len(judged_rows) < len(rows):
        print(f"cases that could not be judged: {len(rows) - len(judged_rows)} of {len(rows)}")
    for name in PEERS:
        found = [row.peers[name][1] for row in rows if name in row.peers]
        if found:
            print(f"{name}: first {sum(found)} of {len(found)} defects")


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [
        {
            "case": row.case.name,
            "set": row.case.folder.parent.name,
            "category": row.case.truth["category"],
            "ratio": row.ratio and dataclasses.asdict(row.ratio),
            "judgement": row.judgement and dataclasses.asdict(row.judgement),
            "prediction": row.prediction and dataclasses.asdict(row.prediction),
            "rate_errors": row.rate_errors,
            "slow_down_while_recorded": row.slow_down,
            "problems": row.problems,
            "miscounts": row.miscounts,
            "peers": {name: {"first": first, "found": found} for name, (first, found) in row.peers.items()},
        }
        for row in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=("held_out", "development"), default="development")
    parser.add_argument("--cases", default="", metavar="A,B", help="only these cases")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of slow and fixed; 0: measure no ratio")
    parser.add_argument("--quick", action="store_true", help="use each case's shortest sensible call")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep captures, reports and ratios here")
    parser.add_argument(
        "--again", type=Path, metavar="DIR", help="judge the captures kept there, record nothing"
    )
    parser.add_argument("--peers", default="", metavar="A,B", help=f"also judge {', '.join(PEERS)}, or all")
    parser.add_argument(
        "--threads",
        default="",
        metavar="N",
        help="compute threads of every run (OMP_NUM_THREADS); on a busy machine the libraries' own choice "
        "makes networks many times slower, and everything else looks cheap",
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "core", "cpu"),
        default="wall",
        help="of slow and fixed, for a busy machine: core leaves out the time the main thread waited for a "
        "core, cpu is CPU time (not for scripts that wait or have live workers)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found")
    given = parser.parse_args()
    global COMPUTE_THREADS, CLOCK
    COMPUTE_THREADS, CLOCK = given.threads, given.clock
    given.peers = peers_of(given.peers)
    cases = load_cases(given.set, list(filter(None, given.cases.split(","))))
    secret = given.set == "held_out"
    if given.quick and given.peers:
        print("--quick: other profilers see mostly imports in so short a run; do not publish their figures")
    if secret and (given.keep is not None or given.json is not None):
        print("held_out: do not tune rules by what --keep and --json show")
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        ratios = Ratios((given.keep or given.again or Path(scratch)) / "ratios.json")
        rows: list[Row] = []
        if not secret:
            print_row(WIDTHS, HEAD)
        for number, case in enumerate(cases, 1):
            print(f"{number}/{len(cases)} {case.name}", file=sys.stderr, flush=True)
            arguments = case.truth.get("quick_args", []) if given.quick else []
            rows.append(judge_case(case, list(arguments), given, ratios))
            if not secret:
                print_case(rows[-1])
            if given.json is not None:  # after each case: a run takes hours
                given.json.write_text(json.dumps(as_json(rows), indent=1))
    print_notes(rows, secret)
    print_summary(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
