"""Plans: read from TOML with errors that name the key, and to and from JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.capture.plan import Plan, Variant, apply_overrides, fill_command, split_command
from hotloop.capture.plan_file import plan_from_data, plan_to_data, read_plan

ROOT = Path(__file__).parent.parent.parent

PLAN = """
name = "suspects"
command = "python train.py --lr 0.1 --steps {n} --seed {seed}"
environment = { A = "1" }
budget = "1h30m"
tolerance = "5%"
timeout = "90s"
seeds = [7, 8]

[[suspects]]
name = "small lr"
set = { lr = 0.01 }
expected = "no difference"
safety = "semantic"

[[suspects]]
name = "one thread"
environment = { OMP_NUM_THREADS = 1 }

[[sweeps]]
setting = "num-envs"
values = [2, 4]

[scale]
sizes = [400, 100]
repeats = 2
"""


def plan_from(text: str, folder: Path) -> Plan:
    file = folder / "plan.toml"
    file.write_text(text)
    return read_plan(file)


def test_a_plan_says_what_each_variant_runs(tmp_path: Path) -> None:
    plan = plan_from(PLAN, tmp_path)
    assert [v.name for v in plan.variants] == [
        "as it is",
        "small lr",
        "one thread",
        "num-envs=2",
        "num-envs=4",
    ]
    base = ("python", "train.py", "--lr", "0.1", "--steps", "{n}", "--seed", "{seed}")
    assert plan.baseline.command == base
    assert plan.variant("small lr").command == tuple("0.01" if w == "0.1" else w for w in base)
    assert plan.variant("small lr").safety == "semantic"
    assert plan.variant("one thread").environment == (("A", "1"), ("OMP_NUM_THREADS", "1"))
    assert plan.variant("num-envs=4").command == (*base, "--num-envs", "4")
    assert plan.variant("num-envs=4").sweep == "num-envs"
    assert (plan.budget_s, plan.tolerance, plan.timeout_s) == (5400.0, 0.05, 90.0)
    assert (plan.sizes, plan.repeats, plan.kind) == ((100, 400), 2, "blocks")
    assert [plan.seed_of(block) for block in range(3)] == [7, 8, 7]


def test_a_sweep_may_set_a_variable(tmp_path: Path) -> None:
    text = 'command = "x"\n[[sweeps]]\nsetting = "OMP_NUM_THREADS"\nby = "environment"\nvalues = [1, 2]\n'
    plan = plan_from(text, tmp_path)
    assert plan.kind == "sweep"
    assert [v.environment for v in plan.variants] == [
        (),
        (("OMP_NUM_THREADS", "1"),),
        (("OMP_NUM_THREADS", "2"),),
    ]
    assert all(v.command == ("x",) for v in plan.variants)


@pytest.mark.parametrize("file", sorted((ROOT / "examples/plans").glob("*.toml")), ids=lambda f: f.name)
def test_the_example_plans_can_be_read_and_their_scripts_exist(file: Path) -> None:
    plan = read_plan(file)
    scripts = [word for word in plan.baseline.command if word.endswith(".py")]
    assert len(plan.variants) > 1 and scripts
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("budget = '2m'", "no command"),
        ("command = 'x'", "nothing to compare"),
        ("command = 'x'\nbugdet = '2m'\n[[suspects]]\nname='a'", "'bugdet'"),
        ("command = 'x'\nbudget = 'soon'\n[[suspects]]\nname='a'", "budget is 'soon'"),
        ("command = 'x'\ntolerance = '300%'\n[[suspects]]\nname='a'", "tolerance is '300%'"),
        ("command = 'x'\n[[suspects]]\nset={a=1}", "no name"),
        ("command = 'x'\n[[suspects]]\nname='a'\nsafety='sure'", "safety of 'a' is 'sure'"),
        ("command = 'x'\n[[suspects]]\nname='a'\nenvironment='B=1'", "environment of 'a'"),
        ("command = 'x'\n[[suspects]]\nname='a'\n[[suspects]]\nname='a'", "Two variants are called 'a'"),
        ("command = 'x'\n[[suspects]]\nname='a'\nexpect='b'", "'expect'"),
        ("command = 'x \"'\n[[suspects]]\nname='a'", "No closing quotation"),
        ("command = 'x'\n[[sweeps]]\nvalues=[1]", "no setting"),
        ("command = 'x'\n[[sweeps]]\nsetting='a'", "no values"),
        ("command = 'x'\n[scale]\nsizes=[1, 2]", "no {n}"),
        ("command = 'x {n}'\n[scale]\nsizes=[1, 'two']", "sizes"),
        ("command = 'x'\nlooks = [8, 5]\n[[suspects]]\nname='a'", "looks is [8, 5]"),
        ("command = 'x'\nseeds = 3\n[[suspects]]\nname='a'", "seeds of the plan is 3"),
        ("command = ", "not valid TOML"),
        ("suspects = 3\ncommand='x'", "suspects"),
    ],
)
def test_a_bad_plan_is_one_sentence_that_names_the_key(text: str, names: str, tmp_path: Path) -> None:
    with pytest.raises(HotloopError) as problem:
        plan_from(text, tmp_path)
    assert names in str(problem.value)
    assert "plan.toml" in str(problem.value)
    assert "\n" not in str(problem.value).strip()


words = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)  # type: ignore[arg-type]
variants = st.builds(
    Variant,
    name=words,
    command=st.lists(words.filter(bool), min_size=1, max_size=4).map(tuple),
    overrides=st.lists(words, max_size=2).map(tuple),
    environment=st.dictionaries(words, words, max_size=2).map(lambda d: tuple(d.items())),
    expected=words,
    safety=st.sampled_from(["safe", "semantic"]),
    sweep=words,
    revision=words,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(variants, min_size=2, max_size=4, unique_by=lambda v: v.name),
    st.one_of(st.none(), st.floats(0.1, 1e6)),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
)
def test_a_plan_survives_json(several: list[Variant], budget_s: float | None, seeds: tuple[int, ...]) -> None:
    named = [v for v in several if v.name]
    if len(named) < 2:
        return
    plan = Plan(tuple(named), "blocks", budget_s=budget_s, seeds=seeds, timeout_s=budget_s, record=False)
    assert plan_from_data(json.loads(json.dumps(plan_to_data(plan)))) == plan


@pytest.mark.parametrize(
    ("command", "override", "result"),
    [
        ("python t.py --lr 1", "lr=2", "python t.py --lr 2"),
        ("python t.py --lr=1 -x", "lr=2", "python t.py --lr=2 -x"),
        ("python t.py lr=1", "lr=2", "python t.py lr=2"),
        ("python t.py a=1", "lr=2", "python t.py a=1 lr=2"),
        ("python t.py", "lr=2", "python t.py --lr 2"),
        ("python t.py --num_envs 1", "num-envs=2", "python t.py --num_envs 2"),
        ("python t.py {lr}", "lr=2", "python t.py 2"),
        ("python t.py", "turbo", "python t.py --turbo"),
        ("python t.py --turbo", "turbo", "python t.py --turbo"),
        ("python t.py", "-n=2", "python t.py -n 2"),
        ("lr x", "lr=2", "lr x --lr 2"),
        ("python t.py --eq a=b", "eq=c=d", "python t.py --eq c=d"),
    ],
)
def test_overrides_replace_what_is_there_and_append_what_is_not(
    command: str, override: str, result: str
) -> None:
    assert apply_overrides(tuple(command.split()), (override,)) == tuple(result.split())


def test_a_command_line_may_begin_with_variables_and_needs_no_shell(tmp_path: Path) -> None:
    assert split_command("A=1 B='x y' python t.py C=3 '|'", "x") == (
        (("A", "1"), ("B", "x y")),
        ("python", "t.py", "C=3", "|"),
    )
    for odd in ("a && b", "a | b", "a > f", "cd x; a", "a &"):
        with pytest.raises(HotloopError, match="needs a shell"):
            split_command(odd, "x")
    plan = plan_from('command = "A=1 x"\n[[suspects]]\nname="b"\ncommand="B=2 y"\n', tmp_path)
    assert plan.baseline == Variant("as it is", ("x",), environment=(("A", "1"),))
    assert plan.variants[1].command == ("y",) and dict(plan.variants[1].environment) == {"A": "1", "B": "2"}


def test_seed_and_size_are_filled_in_and_other_braces_stay() -> None:
    assert fill_command(("a{seed}b", "{n}", "{x}", "{{"), 3, 10) == ["a3b", "10", "{x}", "{{"]
    assert fill_command(("{n}",), 3, None) == ["{n}"]


def test_amounts_as_people_type_them() -> None:
    assert [parse_seconds(t) for t in ("90", "90s", "2m", "1h30m", "500ms", "1.5 min", 7)] == [
        90.0,
        90.0,
        120.0,
        5400.0,
        0.5,
        90.0,
        7.0,
    ]
    assert [parse_fraction(t) for t in ("3%", "0.03", 0.5)] == [0.03, 0.03, 0.5]
    assert [parse_fraction(t) for t in ("3", "1", 5, "0.5%", "50")] == [0.03, 0.01, 0.05, 0.005, 0.5]
    for wrong in ("", "soon", "2x", "0", "-3s", "1h and 2m"):
        with pytest.raises(HotloopError):
            parse_seconds(wrong)
    for wrong in ("", "3 percent", "0", "100%", "-1%"):
        with pytest.raises(HotloopError):
            parse_fraction(wrong)
