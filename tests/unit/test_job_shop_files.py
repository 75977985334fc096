"""Job shops from text files: both published formats, several instances, damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.job_shop import job_shop
from hotloop.rl.envs.petri.job_shop_files import parse_job_shop, read_job_shop

STANDARD = """
# two jobs on three machines
 2 3
 0 5  2 6  1 7
 1 2  0 3  2 4
"""
TAILLARD = """
 Nb of jobs, Nb of Machines, Time seed, Machine seed, Upper bound, Lower bound
 2 3 840612802 398197754 18 15
 Times
 5 6 7
 2 3 4
 Machines
 1 3 2
 2 1 3
"""
EXPECTED = job_shop([[0, 2, 1], [1, 0, 2]], [[5, 6, 7], [2, 3, 4]], name="this job shop")


@pytest.mark.parametrize("text", [STANDARD, TAILLARD])
def test_both_formats_give_the_same_net(text: str) -> None:
    assert parse_job_shop(text) == EXPECTED


def test_a_file_names_the_net(tmp_path: Path) -> None:
    file = tmp_path / "small.txt"
    file.write_text(STANDARD)
    assert read_job_shop(file).name == "small"


LIBRARY = f"""
 +++++++++++++++++++
 instance tiny
 +++++++++++++++++++
 Found in a book of 1963
 1 1
 0 9
 +++++++++++++++++++
 instance other
 {STANDARD}
"""


def test_one_of_several_instances_is_chosen_by_its_name() -> None:
    assert parse_job_shop(LIBRARY, instance="tiny") == job_shop([[0]], [[9]], name="tiny")
    assert parse_job_shop(LIBRARY, instance="other").transitions == EXPECTED.transitions
    with pytest.raises(HotloopError, match="has 2 instances; choose one of tiny, other"):
        parse_job_shop(LIBRARY)
    with pytest.raises(HotloopError, match="has no instance 'ft06'; choose one of tiny, other"):
        parse_job_shop(LIBRARY, instance="ft06")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not start with the number of jobs and machines"),
        ("6\n0 1", "does not start with the number of jobs and machines"),
        ("0 3\n", "has 0 jobs and 3 machines"),
        ("2 2\n0 1 1 2\n", "announces 2 jobs on 2 machines and goes on with 1 rows of 4 numbers"),
        ("2 2\n0 1 1 2\n0 1 1 2.5\n", "goes on with 1 rows"),
        ("1 2\n0 1 1\n", "1 rows of 3 numbers"),
        ("1 2\n1 1 2 1\n", "sends job 0 to machine 2; with 2 machines, this format numbers them from 0 to 1"),
        ("1 2\n3 4\n0 1\n", "machine 0; with 2 machines, this format numbers them from 1 to 2"),
        ("1 1\n0 -4\n", "duration -4 is not allowed"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(HotloopError, match=words):
        parse_job_shop(text)
