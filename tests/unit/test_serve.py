"""`hotloop serve`: who may ask, what is found, and that nothing of a hostile folder gets through."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

import hotloop
from hotloop import Profiler
from hotloop._util.errors import HotloopError
from hotloop.report.serve_html import sparkline
from hotloop.workflows.serve import Runs, key_of, make_app, prepare
from tests.unit.test_series_report import made

TOKEN, PORT = "secret-token", 8123
HOSTILE = "<img src=x onerror=\"document.title='run'\">"


UNDER_WAY = """
import sys, hotloop
hotloop.start(sys.argv[1])
for _ in range(40):
    with hotloop.profile("env_step"):
        pass
    hotloop.progress(env_steps=1)
print("ready", flush=True)
sys.stdin.read()
"""


class Answer(NamedTuple):
    """What the application answered."""

    status: int
    text: str
    headers: dict[str, str]


def record(folder: Path) -> None:
    profiler = hotloop.Profiler()
    profiler.start(folder)
    for _ in range(40):
        with profiler.profile("env_step"):
            pass
        profiler.progress(env_steps=1)
    profiler.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two captures (one with a hostile name), one under way, a damaged one, a series, and other things."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("first", HOSTILE):
        record(place / name)
    (place / "damaged").mkdir()
    (place / "damaged" / "capture.json").write_text('{"x":')
    made(place / "pairs", ("A", "<script>B"), 8, slow=0.5)
    (place / "notes").mkdir()
    (place / "file.txt").write_text("x")
    os.symlink("/etc", place / "elsewhere")
    with subprocess.Popen(
        [sys.executable, "-c", UNDER_WAY, place / "under-way"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None and job.stdin is not None
        assert job.stdout.readline() == b"ready\n"
        yield place
        job.stdin.close()


@pytest.fixture(scope="module")
def app(folder: Path) -> Any:
    return make_app(folder, TOKEN, PORT)


def join_workers() -> None:
    """The threads of anyio end by themselves, soon after the loop that they worked for."""
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO"):
            thread.join(60)


def ask(
    app: Any, path: str, *, host: str = f"127.0.0.1:{PORT}", method: str = "GET", query: str = ""
) -> Answer:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", host.encode())], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    join_workers()
    headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], body.decode(), headers)


def test_the_list_has_every_run_and_says_what_cannot_be_read(app: Any) -> None:
    answer = ask(app, f"/{TOKEN}/")
    assert answer.status == 200
    for words in ("first", "under-way", "running", "pairs", "faster by", "damaged", "cannot be read"):
        assert words in answer.text, words
    assert ">notes<" not in answer.text and "elsewhere" not in answer.text
    assert answer.text.count('<input type="checkbox"') == 3


def test_hostile_names_are_text(app: Any, folder: Path) -> None:
    keys = (key_of(folder / HOSTILE), key_of(folder / "pairs"))
    both = urlencode([("run", keys[0]), ("run", key_of(folder / "first"))])
    for path, query in (("/", ""), ("/list", ""), (f"/report/{keys[0]}", ""), (f"/live/{keys[0]}", ""),
                        (f"/series/{keys[1]}", ""), ("/diff", both)):  # fmt: skip
        answer = ask(app, f"/{TOKEN}{path}", query=query)
        assert answer.status == 200, path
        assert "<img" not in answer.text and "<script>B" not in answer.text, path


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/list", f"/{TOKEN}x/", "/favicon.ico", f"/{TOKEN[:-1]}/"]
)
def test_without_the_token_there_is_nothing(app: Any, path: str) -> None:
    answer = ask(app, path)
    assert answer.status == 404
    assert "hotloop" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", ""])
def test_another_host_name_is_refused(app: Any, host: str) -> None:
    assert ask(app, f"/{TOKEN}/", host=host).status == 400
    assert ask(app, f"/{TOKEN}/", host=f"localhost:{PORT}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(app: Any, method: str) -> None:
    assert ask(app, f"/{TOKEN}/", method=method).status == 405


@pytest.mark.parametrize("key", ["first", "..", "../first", "%2e%2e%2ffirst", "0" * 16, "elsewhere", "\x00"])
def test_only_keys_of_the_list_lead_to_runs(app: Any, key: str) -> None:
    for kind in ("report", "series", "live"):
        assert ask(app, f"/{TOKEN}/{kind}/{key}").status == 404


def test_answers_are_not_kept_framed_or_told_to_others(app: Any, folder: Path) -> None:
    for path in ("/", f"/report/{key_of(folder / 'first')}"):
        answer = ask(app, f"/{TOKEN}{path}")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.text
        assert TOKEN not in answer.text


def test_two_runs_side_by_side_and_what_cannot_be_compared(app: Any, folder: Path) -> None:
    first, other = key_of(folder / "first"), key_of(folder / HOSTILE)
    answer = ask(app, f"/{TOKEN}/diff", query=urlencode([("run", first), ("run", other)]))
    assert answer.status == 200
    assert "env_step" in answer.text and "One run each proves nothing" in answer.text
    for query in ("", f"run={first}", f"run={first}&run=nothing", urlencode([("run", first)] * 3)):
        refused = ask(app, f"/{TOKEN}/diff", query=query)
        assert refused.status == 422 and "Select two captures" in refused.text


def test_a_damaged_capture_is_one_sentence(app: Any, folder: Path) -> None:
    answer = ask(app, f"/{TOKEN}/report/{key_of(folder / 'damaged')}")
    assert answer.status == 422
    assert "not valid JSON" in answer.text


def test_what_has_not_changed_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(folder)
    before = runs.listed()
    read: list[str] = []
    monkeypatch.setattr("hotloop.workflows.serve.summarise", lambda key, place: read.append(place.name))
    monkeypatch.setattr("hotloop.workflows.serve.FRESH_S", 60.0)
    assert runs.listed() == before
    assert read == []


def test_a_running_job_shows_what_it_does_now(app: Any, folder: Path) -> None:
    key = key_of(folder / "under-way")
    assert "<html" in ask(app, f"/{TOKEN}/live/{key}").text
    now = ask(app, f"/{TOKEN}/live/{key}/now").text
    assert "<html" not in now
    assert "Running for" in now and "Env steps per second" in now


def test_nothing_in_the_folder_changes(app: Any, folder: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = [p for p in folder.rglob("*") if p.is_file() and "under-way" not in p.parts]
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in files}

    before = state()
    for path in ("/", "/list", f"/report/{key_of(folder / 'first')}", f"/series/{key_of(folder / 'pairs')}"):
        ask(app, f"/{TOKEN}{path}")
    assert state() == before


def test_the_server_answers_on_this_computer_only(folder: Path) -> None:
    served = prepare(folder)
    assert served.address.startswith("http://127.0.0.1:")
    running = threading.Thread(target=served.run)
    running.start()
    try:
        with urllib.request.urlopen(served.address, timeout=60) as answer:
            assert answer.status == 200
            assert "server" not in answer.headers
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(served.address[:-4] + "/", timeout=60)
    finally:
        served.stop()
        running.join(60)
        join_workers()
    assert not running.is_alive()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HotloopError, match="is not a folder"):
        prepare(tmp_path / "nowhere")
    with pytest.raises(HotloopError, match="between 0 and 65535"):
        prepare(tmp_path, 70_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(HotloopError, match="choose another with --port"):
            prepare(tmp_path, taken.getsockname()[1])


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    assert "hotloop run train.py" in ask(make_app(tmp_path, TOKEN, PORT), f"/{TOKEN}/").text


def test_a_crowded_folder_says_what_is_not_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(folder, TOKEN, PORT)
    assert "are not listed" not in ask(app, f"/{TOKEN}/").text
    monkeypatch.setattr("hotloop.workflows.serve.MOST_RUNS", 2)
    for path in ("/", "/list"):
        assert "3 older ones are not listed" in ask(app, f"/{TOKEN}{path}").text


def test_many_selected_runs_do_not_read_the_folder_many_times(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, scans, scan = make_app(folder, TOKEN, PORT), [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: scans.append(place) or scan(place))
    assert ask(app, f"/{TOKEN}/diff", query="run=1&" * 100).status == 422
    assert scans.count(folder) == 1


def test_the_address_works_without_its_last_slash(app: Any) -> None:
    answer = ask(app, f"/{TOKEN}")
    assert (answer.status, answer.headers["location"]) == (307, f"/{TOKEN}/")
    assert ask(app, "/wrong").status == 404
    assert ask(app, f"/{TOKEN}", host="evil.example").status == 400


def test_a_capture_that_is_the_working_folder_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "first")
    assert ">first</a>" in ask(make_app(Path(), TOKEN, PORT), f"/{TOKEN}/").text


def test_a_sparkline_leaves_out_what_was_not_measured() -> None:
    assert sparkline([1.0]) == "" and sparkline([float("nan")] * 3) == ""
    assert sparkline([1.0, float("nan"), 2.0]).count(",") >= 3
    json.dumps(sparkline([0.0, 0.0]))


def test_a_folder_that_was_deleted_is_named_as_such(app: Any, folder: Path) -> None:
    folder.rename(folder.with_name("renamed"))
    for path in ("/", "/list"):
        answer = ask(app, f"/{TOKEN}{path}")
        assert answer.status == 200 and "does not exist any more" in answer.text
        assert "Nothing has been recorded" not in answer.text


def test_a_run_inside_a_run_of_the_same_name_is_listed_beside_it(tmp_path: Path) -> None:
    for place in (tmp_path / "run", tmp_path / "run" / "run"):
        Profiler(core_name="python").start(place, memory=False).stop()
    runs = Runs(tmp_path / "run")
    assert sorted(run.name for run in runs.listed()) == ["run", "run/run"]
