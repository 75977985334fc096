"""How long the results that `asyncio.gather` waits for take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from hotloop.instrument import asyncio as ours
from hotloop.instrument.patch import Patches


@pytest.fixture
def sites() -> Iterator[dict[str, dict[str, Any]]]:
    patches = Patches()
    ours.patch_package(asyncio, patches)
    ours._sites.clear()
    yield ours._sites
    patches.undo()
    ours._sites.clear()


async def answer(number: int, turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return number


def test_each_result_and_all_of_them_are_timed(sites: dict[str, dict[str, Any]]) -> None:
    async def main() -> list[list[int]]:
        rounds = []
        for _ in range(3):
            rounds.append(list(await asyncio.gather(answer(1, 1), answer(2, 2), answer(3, 50))))
        return rounds

    assert asyncio.run(main()) == [[1, 2, 3]] * 3
    (found,) = sites.values()
    assert found["site"].startswith(__file__) and (found["calls"], found["timed"]) == (3, 3)
    first, second, third = found["each_ns"]
    assert 0 < first < second < third == found["all_ns"]  # they end in this order, whatever the load


def test_errors_and_cancelled_results_stay_what_they_are(sites: dict[str, dict[str, Any]]) -> None:
    async def fails() -> None:
        raise ValueError("of the script")

    async def main() -> None:
        with pytest.raises(ValueError, match="of the script"):
            await asyncio.gather(fails(), answer(1, 1))
        found = await asyncio.gather(fails(), answer(1, 1), return_exceptions=True)
        assert isinstance(found[0], ValueError) and found[1] == 1
        same = answer(7, 1)
        assert list(await asyncio.gather(same, same)) == [7, 7]
        assert await asyncio.gather() == []
        assert list(await asyncio.gather(answer(5, 1))) == [5]
        waiting = asyncio.gather(answer(1, 1000), answer(2, 1000))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert all(found["timed"] <= found["calls"] for found in sites.values())


def test_most_calls_of_a_long_run_are_only_counted(
    sites: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "MOST_TIMED", 8)

    async def main() -> None:
        for _ in range(40):
            await asyncio.gather(answer(1, 0), answer(2, 0))

    asyncio.run(main())
    (found,) = sites.values()
    assert found["calls"] == 40 and found["timed"] == 8 + 2
