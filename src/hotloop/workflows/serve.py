"""`hotloop serve [FOLDER]`: a page for this computer alone that lists runs, shows reports and follows a job.

Read-only. It listens on 127.0.0.1, every address begins with a random token, requests with another host name
(DNS rebinding) are refused, and runs are addressed by keys of what was found in the folder, never by paths.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.analysis.diff import diff
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.live import LiveReading, live_status, take_reading
from hotloop.analysis.overview import overview
from hotloop.analysis.phases import training_of
from hotloop.capture import series as store
from hotloop.capture.folder import RUNS
from hotloop.capture.open_capture import open_capture
from hotloop.report import html as page_of_report
from hotloop.report import serve_html as pages
from hotloop.report.serve_html import Listed
from hotloop.workflows import series_report
from hotloop.workflows.project_settings import load_settings
from hotloop.workflows.report import report_on

MOST_RUNS = 500  # listed, newest first
HOST = "127.0.0.1"
LIVE_SPAN_S = 5.0  # rates are averaged over about this long
FRESH_S = 1.0  # what is being written is read again after this long
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the pages set stricter ones
}


@dataclass
class Runs:
    """The captures and series of a folder, with what was read of them lately."""

    folder: Path
    left_out: int = 0  # older runs that the last list had no room for
    _listed: dict[str, tuple[tuple[int, ...], float, Listed]] = field(default_factory=dict)
    _pages: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    _readings: dict[str, list[LiveReading]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def gone(self) -> bool:
        """Whether the folder was deleted or renamed since."""
        return not self.folder.is_dir()

    def places(self) -> dict[str, Path]:
        """Captures and series by their keys, newest first, `MOST_RUNS` at most."""
        found = sorted(self._candidates(), key=lambda item: -item[1])
        self.left_out = max(len(found) - MOST_RUNS, 0)
        return {key_of(place): place for place, _ in found[:MOST_RUNS]}

    def _candidates(self) -> Iterator[tuple[Path, float]]:
        inside = [self.folder]
        try:
            inside += [
                Path(entry.path) for entry in os.scandir(self.folder) if entry.is_dir(follow_symlinks=False)
            ]
        except OSError:
            return
        for place in inside:
            try:
                if (place / "capture.json").is_file() or store.is_series(place):
                    yield place, place.stat().st_mtime
            except OSError:
                continue

    def find(self, key: str) -> Path | None:
        """The place of a key; None if there is none in the folder."""
        return self.places().get(key)

    def listed(self) -> list[Listed]:
        """All runs; what has not changed is not read again."""
        with self._lock:
            return [self._one(key, place) for key, place in self.places().items()]

    def _one(self, key: str, place: Path) -> Listed:
        stamp, now = stamp_of(place), time.monotonic()
        known = self._listed.get(key)
        if known is not None and known[0] == stamp:
            running = known[2].overview is not None and known[2].overview.running
            if not running or now - known[1] < FRESH_S:
                return known[2]
        made = summarise(key, place)
        if place != self.folder and made.name == name_of(self.folder):  # a run inside a run
            made = replace(made, name=f"{made.name}/{made.name}")
        self._listed[key] = (stamp, now, made)
        return made

    def report(self, key: str, place: Path) -> str:
        """The report of a capture or series as a page."""
        with self._lock:
            stamp = stamp_of(place)
            known = self._pages.get(key)
            if known is not None and known[0] == stamp:
                return known[1]
            if store.is_series(place):
                made = series_report.html(series_report.series_report(str(place)), home="../")
            else:
                found = report_on(str(place))
                made = page_of_report.html(found.findings, str(place), home="../")
                if any(process.alive for process in found.capture.processes):
                    return made
            if len(self._pages) > 50:
                self._pages.clear()
            self._pages[key] = (stamp, made)
            return made

    def now(self, key: str, place: Path) -> str:
        """What a run is doing, over the last seconds."""
        capture = open_capture(str(place))
        with self._lock:
            before = self._readings.setdefault(key, [])
            at_ns = time.monotonic_ns()
            reading = take_reading(capture, at_ns, time.time_ns(), before[-1] if before else None)
            while len(before) > 1 and at_ns - before[1].at_ns > LIVE_SPAN_S * 1e9:
                before.pop(0)
            status = live_status(reading, before[0] if before else None)
            before.append(reading)
        patterns = load_settings().category_patterns
        return pages.live_fragment(explain_without_advice(capture, category_patterns=patterns), status, key)


def key_of(place: Path) -> str:
    """How a run is called in addresses: no part of its name, which may be anything."""
    return hashlib.sha256(os.fsencode(place.absolute())).hexdigest()[:16]


def name_of(place: Path) -> str:
    """The name of a run's folder, also of `.`."""
    return place.name if place.name not in ("", "..") else place.resolve().name


def stamp_of(place: Path) -> tuple[int, ...]:
    """Changes when files of a capture or series come, go or change."""
    found = []
    for file in (place, place / "capture.json", place / "series.json", place / "parts", place / "runs"):
        try:
            facts = file.stat()
            found += [facts.st_mtime_ns, facts.st_size]
        except OSError:
            found.append(0)
    return tuple(found)


def summarise(key: str, place: Path) -> Listed:
    """One row of the list; a run that cannot be read says why."""
    name, is_series, changed = name_of(place), False, 0.0
    try:
        changed = place.stat().st_mtime
        is_series = store.is_series(place)
        if is_series:
            found = series_report.series_report(str(place)).found
            said = [f"{row.variant.name}: {row.verdict.summary}" for row in found.compared]
            return Listed(key, name, True, None, "; ".join(said[:3]) or "no comparison yet", changed)
        return Listed(key, name, False, overview(open_capture(str(place))), "", changed)
    except (HotloopError, OSError) as error:
        return Listed(key, name, is_series, None, f"cannot be read: {error}", changed)


def make_app(folder: Path, token: str, port: int) -> Any:
    """The application; every address begins with `/token/`."""
    applications = require_extra("starlette.applications", "serve")
    responses = require_extra("starlette.responses", "serve")
    routing = require_extra("starlette.routing", "serve")
    runs = Runs(folder)
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    def answer(text: str, status: int = 200) -> Any:
        return responses.HTMLResponse(text, status, HEADERS)

    def guarded(handle: Callable[[Any], str | None]) -> Callable[[Any], Any]:
        def endpoint(request: Any) -> Any:
            if request.headers.get("host", "") not in hosts:
                return responses.PlainTextResponse("wrong host", 400, HEADERS)
            if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
                return responses.PlainTextResponse("not found", 404, HEADERS)
            try:
                made = handle(request)
            except HotloopError as error:
                return answer(pages.message_page(str(error)), 422)
            return answer(pages.message_page("There is no such run."), 404) if made is None else answer(made)

        return endpoint

    def place_of(request: Any) -> tuple[str, Path | None]:
        key = request.path_params["key"]
        return key, runs.find(key)

    def home(request: Any) -> str:
        return pages.list_page(str(folder), runs.listed(), runs.left_out, gone=runs.gone)

    def rows(request: Any) -> str:
        return pages.list_rows(runs.listed(), runs.left_out, gone=runs.gone)

    def report(request: Any) -> str | None:
        key, place = place_of(request)
        return None if place is None else runs.report(key, place)

    def live(request: Any) -> str | None:
        key, place = place_of(request)
        return None if place is None else pages.live_page(name_of(place), runs.now(key, place), key)

    def now(request: Any) -> str | None:
        key, place = place_of(request)
        return None if place is None else runs.now(key, place)

    def compared(request: Any) -> str | None:
        keys = request.query_params.getlist("run")
        known = runs.places()
        places = [known[key] for key in keys if key in known]
        if len(keys) != 2 or len(places) != 2:
            raise HotloopError("Select two captures to compare.")
        a, b = (training_of(open_capture(str(place))) for place in places)
        return pages.diff_page(diff(a, b, labels=(name_of(places[0]), name_of(places[1]))))

    def without_slash(request: Any) -> Any:
        """The address without its last character: links in the pages need it."""
        answered = guarded(lambda request: "")(request)
        return (
            responses.RedirectResponse(f"/{token}/", 307, HEADERS)
            if answered.status_code == 200
            else answered
        )

    paths = {
        "/": home,
        "/list": rows,
        "/diff": compared,
        "/report/{key}": report,
        "/series/{key}": report,
        "/live/{key}": live,
        "/live/{key}/now": now,
    }
    routes = [
        routing.Route("/{token}" + path, guarded(handle), methods=["GET", "HEAD"])
        for path, handle in paths.items()
    ]
    routes.append(routing.Route("/{token}", without_slash, methods=["GET", "HEAD"]))
    app = applications.Starlette(routes=routes)
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class Served:
    """A server that is ready to run."""

    address: str
    run: Callable[[], None]  # until interrupted
    stop: Callable[[], None]  # from another thread


def prepare(folder: Path | None, port: int = 0) -> Served:
    """Bind a port of 127.0.0.1 (0: any that is free) and make the server for a folder of runs."""
    uvicorn = require_extra("uvicorn", "serve")
    require_extra("starlette", "serve")
    place = folder or RUNS
    if not place.is_dir():
        raise HotloopError(
            f"{place} is not a folder; name one with captures, or record: hotloop run train.py"
        )
    if not 0 <= port <= 65535:
        raise HotloopError(f"--port is {port}; it must be between 0 and 65535.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise HotloopError(
            f"Port {port} cannot be used ({error.strerror}); choose another with --port."
        ) from None
    listener.listen(64)  # whoever opens the address at once waits instead of being refused
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(18)
    settings = uvicorn.Config(
        make_app(place, token, port), log_level="error", access_log=False, lifespan="off", server_header=False
    )
    server = uvicorn.Server(settings)

    def stop() -> None:
        server.should_exit = True

    return Served(f"http://{HOST}:{port}/{token}/", lambda: server.run(sockets=[listener]), stop)
