"""Which category a region gets, and where a project's own rules come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.categories import CATEGORIES, Resolver, category_of_name, resolved
from hotloop.capture.model import Node
from hotloop.capture.region_names import FIXED_NAMES
from hotloop.workflows.project_settings import load_settings


def tree(*children: Node) -> Node:
    return Node("", total_ns=100, children=list(children))


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("env_step", "environment"),
        ("env_render", "rendering"),
        ("env_rgb_draw_walls", "rendering"),
        ("policy_forward", "policy"),
        ("learner_forward", "model"),
        ("convlstm_layers", "model"),
        ("recurrent_policy_action_value", "policy"),
        ("ipc_send", "ipc"),
        ("ipc_wait", "wait"),
        ("lock_wait", "wait"),
        ("disk_write", "data"),
        # names of people's own choosing
        ("SnakeEnv.step", "environment"),
        ("SubprocVecEnv.step_wait", "wait"),
        ("policy_loss", "loss"),
        ("eval_env", "evaluation"),
        ("ReplayBuffer.add", "replay"),
        ("QNetwork.forward", "model"),
        ("copy_h2d", "transfer"),
        ("step", "environment"),
        ("train_step", "other"),
        ("", "other"),
        ("<script>alert(1)</script>", "other"),
    ],
)
def test_a_name_determines_its_category(name: str, category: str) -> None:
    assert Resolver().category("", name, "") == category


def test_every_fixed_name_has_a_known_category() -> None:
    assert set(FIXED_NAMES.values()) <= set(CATEGORIES)


def test_explicit_beats_name_beats_parent() -> None:
    assert Resolver().category("physics", "env_step", "policy") == "physics"
    assert Resolver().category("", "env_step", "policy") == "environment"
    assert Resolver().category("", "frobnicate", "policy") == "policy"
    assert Resolver().category("", "frobnicate", "") == "other"


def test_parts_of_a_network_follow_what_is_around_them() -> None:
    inside = Resolver().category
    assert inside("", "convlstm_layers", "policy") == "policy"
    assert inside("", "recurrent_policy_forward", "model") == "model"
    assert inside("", "convlstm_layers", "environment") == "model"
    assert inside("", "env_step", "policy") == "environment"


def test_rules_of_the_user_come_first_and_may_be_prefixes_or_globs() -> None:
    rules = (("env_step_*", "rendering"), ("env_st", "loss"))
    assert category_of_name("env_step_x", rules) == ("rendering", False)
    assert category_of_name("env_step", rules) == ("loss", False)
    assert category_of_name("env_reset", rules) == ("environment", False)


def test_resolved_fills_in_the_tree_and_leaves_the_old_one_alone() -> None:
    given = tree(
        Node(
            "env_step",
            calls=2,
            own_ns=10,
            total_ns=15,
            children=[Node("helper", calls=1, own_ns=5, total_ns=5)],
        ),
        Node("env_step", "environment", calls=3, own_ns=20, total_ns=20),
        Node("env_step", "rendering", calls=1, own_ns=1, total_ns=1),
    )
    found = resolved(given, Resolver())
    assert [(c.name, c.category, c.calls, c.own_ns) for c in found.children] == [
        ("env_step", "environment", 5, 30),
        ("env_step", "rendering", 1, 1),
    ]
    assert found.children[0].children[0].category == "environment"
    assert found.total_ns == 100
    assert [(c.category, c.calls) for c in given.children] == [("", 2), ("environment", 3), ("rendering", 1)]


def test_settings_come_from_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hotloop]\ncategories = {"my_env_*" = "environment"}\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    found = load_settings(inner)
    assert found.category_patterns == (("my_env_*", "environment"),)
    assert found.file == tmp_path / "pyproject.toml"
    (tmp_path / "hotloop.toml").write_text('categories = {x = "loss"}\n')
    assert load_settings(inner).category_patterns == (("x", "loss"),)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'no settings of ours'\n")
    assert load_settings(inner).category_patterns == (("x", "loss"),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("categories = [", "cannot be read"),
        ("categories = 3", "categories is 3"),
        ('categories = {x = "enviroment"}', "'enviroment'; choose one of environment"),
        ('categories = {x = "hotloop"}', "'hotloop'; choose one of"),
        ('categories = {"" = "loss"}', "empty"),
        ("colour = 1", "unknown setting 'colour'"),
        ("tool = {hotloop = 3}", "must be a table"),
        ("tool = 3", "unknown setting 'tool'"),
    ],
)
def test_a_bad_settings_file_is_one_clear_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "hotloop.toml"
    file.write_text(text)
    with pytest.raises(HotloopError) as error:
        load_settings(tmp_path)
    assert complaint in str(error.value) and str(file) in str(error.value)
