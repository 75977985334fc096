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


ONE_LINE = "2 3\n0 5 2 6 1 7 1 2 0 3 2 4  # all of it"
BROKEN_ROWS = "2 3  # two jobs\n0 5 2 6\n1 7\n1 2 0 3\n2 4\n\n"
TAILLARD_ON_ONE_LINE = "2 3\n5 6 7 2 3 4 1 3 2 2 1 3"
ALL_ON_ONE_LINE = "2 3 0 5 2 6 1 7 1 2 0 3 2 4"
SHAPED_LIKE_TAILLARDS = "2 3\n0 5 2\n6 1 7\n1 2 0\n3 2 4"


@pytest.mark.parametrize(
    "text",
    [
        *(STANDARD, TAILLARD, ONE_LINE, BROKEN_ROWS[:-1], TAILLARD_ON_ONE_LINE, ALL_ON_ONE_LINE),
        SHAPED_LIKE_TAILLARDS,
    ],
)
def test_both_formats_give_the_same_net(text: str) -> None:
    assert parse_job_shop(text) == EXPECTED


def test_an_operation_on_each_line_is_not_taken_for_taillards_format() -> None:
    assert parse_job_shop("1 2\n0 1\n1 1") == job_shop([[0, 1]], [[1, 1]], name="this job shop")


def test_a_file_names_the_net(tmp_path: Path) -> None:
    file = tmp_path / "small.txt"
    file.write_text(STANDARD)
    assert read_job_shop(file).name == "small"
    marked = tmp_path / "marked.txt"
    marked.write_text(ONE_LINE, encoding="utf-8-sig")
    assert read_job_shop(marked).places == EXPECTED.places


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


def test_a_name_that_is_there_twice_chooses_nothing() -> None:
    with pytest.raises(HotloopError, match="has the instance 'tiny' twice; give each a name"):
        parse_job_shop(LIBRARY + LIBRARY, instance="tiny")


def test_taillards_instances_have_no_names_and_are_numbered() -> None:
    two = TAILLARD + TAILLARD.replace("5 6 7", "5 6 8")
    assert parse_job_shop(two, instance="1").transitions == EXPECTED.transitions
    assert parse_job_shop(two, instance="2").places != EXPECTED.places
    with pytest.raises(HotloopError, match="has 2 instances; choose one of 1, 2"):
        parse_job_shop(two)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not start with the number of jobs and machines"),
        ("6\n0 1", "does not start with the number of jobs and machines"),
        ("0 3\n", "has 0 jobs and 3 machines"),
        ("2 2\n0 1 1 2\n", "announces 2 jobs on 2 machines and goes on with 1 row of 4 numbers; use 2 rows"),
        ("2 2\n0 1 1 2\n0 1 1 2.5\n", r"1 row of 4 numbers \(line 3, '0 1 1 2.5', is skipped because not"),
        ("2, 2\n0, 1, 1, 2\n", r"jobs and machines \(line 1, '2, 2', is skipped because not all of it is"),
        ("2 2\n", "2 machines and goes on with 0 rows of 0 numbers; use 2 rows of"),
        ("1 2\n0 1 1\n", "1 row of 3 numbers"),
        ("1 2\n1 1 2 1\n", "sends job 0 to machine 2; with 2 machines, this format numbers them from 0 to 1"),
        ("1 2\n3 4\n0 1\n", "machine 0; with 2 machines, this format numbers them from 1 to 2"),
        ("1 1\n0\n1\n2\n", "1 job on 1 machine and goes on with 3 rows of 1 number; use 1 row"),
        ("2 2\n1 1 2 1 1 1 2 1\n", "1 row of 8 numbers"),
        ("1 1\n0 -4\n", "duration -4 is not allowed"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(HotloopError, match=words):
        parse_job_shop(text)
