from __future__ import annotations

import re

import pytest

from hotloop._util.errors import HotloopError
from hotloop.cli import renamed_flags
from hotloop.cli.main import main
from hotloop.cli.renamed_flags import check_flags


@pytest.mark.parametrize("typed", ["--old-name", "--old-name=3", "--old_name"])
def test_an_old_flag_names_the_new_one(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(renamed_flags.RENAMED, "show", {"--old-name": "--new-name"})
    with pytest.raises(HotloopError, match="--old-name is now --new-name; see: hotloop show --help"):
        check_flags("show", ["--fine", typed])
    check_flags("show", ["--new-name", "--other"])
    check_flags("report", [typed])


def test_the_command_line_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(renamed_flags.RENAMED, "show", {"--old-name": "--new-name"})
    assert main(["show", "--old-name"]) == 2
    assert "--old-name is now --new-name" in capsys.readouterr().err


@pytest.mark.parametrize("where", sorted(renamed_flags.RENAMED))
def test_every_new_flag_exists_and_no_old_one_does(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*where.split(), "--help"]) == 0
    text = re.sub(r"--\[no-\]([\w-]+)", r"--\1 --no-\1", capsys.readouterr().out)
    for old, new in renamed_flags.RENAMED[where].items():
        assert f"{old} " not in text
        assert all(flag in text for flag in re.findall(r"--[a-z0-9-]+", new)), new
