"""The web server of the page: static files, jobs as JSON, and a stream that says when a job has changed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from herringbone.backends.facts import settings_of_job
from herringbone.backends.registry import backend_of_job
from herringbone.records.differences import differences
from herringbone.records.home import Home
from herringbone.views.page.files import listed_files, open_listed
from herringbone.views.page.gate import Gate
from herringbone.views.page.live import LiveJob
from herringbone.views.page.log_pages import MAX_LINES, Choice
from herringbone.views.page.summaries import Summaries
from herringbone.views.page.tunings import tuning_row
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.errors import HerringboneError, JobNotFoundError, ServiceError

STATIC = Path(__file__).parent / "static"
# A job of a million points takes tens of megabytes, so only the jobs that were looked at last stay.
_MAX_JOBS = 12
_CHUNK_BYTES = 1 << 18
_MAX_DIGITS = 18
# Proxies and browsers end a stream on which nothing comes.
_SILENCE_SECONDS = 15.0


class Jobs:
    """The jobs that somebody looks at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, LiveJob] = OrderedDict()

    def get(self, name: str) -> LiveJob:
        """Return a job. Raises `JobNotFoundError`."""
        with self._lock:
            if name not in self._jobs:
                self._jobs[name] = LiveJob(name)
                while len(self._jobs) > _MAX_JOBS:
                    self._jobs.popitem(last=False)[1].close()
            self._jobs.move_to_end(name)
            return self._jobs[name]

    def close(self) -> None:
        """Close the files of all jobs."""
        with self._lock:
            for job in self._jobs.values():
                job.close()
            self._jobs.clear()


class Server:
    """The answers to a browser's requests; `pause` is the time between two looks at a job, in seconds.

    >>> app = Server(find_home()).app("the token")                   # doctest: +SKIP
    """

    def __init__(self, home: Home, *, pause: float = 1.0) -> None:
        self._pause = pause
        self._jobs = Jobs()
        self._tunings = Tunings(home)
        self._summaries = Summaries(home, self._tunings)
        self._ends = asyncio.Event()

    def end(self) -> None:
        """Make all streams end, so that the server can."""
        self._ends.set()

    def app(self, token: str) -> Gate:
        """Return the application, behind the gate that asks for the token."""
        routes = [
            Route("/", _index),
            Route("/jobs/{name}", _index),
            Route("/compare", _index),
            Route("/tunings/{name}", _index),
            Route("/api/differences", self._differences),
            Route("/api/jobs", self._list),
            Route("/api/jobs/{name}", self._job),
            Route("/api/jobs/{name}/log", self._log),
            Route("/api/jobs/{name}/files", self._files),
            Route("/api/jobs/{name}/file", self._file),
            Route("/api/tunings/{name}", self._tuning),
            Route("/api/tunings/{name}/stream", self._tuning_stream),
            Route("/api/stream", self._list_stream),
            Route("/api/jobs/{name}/stream", self._job_stream),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001 - the signature is starlette's
            yield
            self._jobs.close()
            self._summaries.close()

        application = Starlette(
            routes=routes,
            lifespan=lifespan,
            middleware=[Middleware(GZipMiddleware, minimum_size=4096, compresslevel=1)],
            exception_handlers={HerringboneError: _explain, OSError: _missing},
        )
        return Gate(application, token)

    # Starlette runs what is no coroutine in a thread.
    def _list(self, request: Request) -> Response:  # noqa: ARG002
        lines, now = self._summaries.lines(), time.time()
        tunings = [tuning_row(look, now=now) for look in self._tunings.all()]
        return _json({"jobs": lines, "tunings": tunings, "now": now})

    def _differences(self, request: Request) -> Response:
        names = [unquote(name) for name in request.query_params.get("jobs", "").split(",") if name]
        return _json(differences([settings_of_job(backend_of_job(name), name) for name in names]))

    def _tuning(self, request: Request) -> Response:
        look = self._tunings.get(request.path_params["name"])
        return _json(self._summaries.tuning(look, now=time.time()))

    def _job(self, request: Request) -> Response:
        job = self._jobs.get(request.path_params["name"])
        job.look()
        return _json(job.data() | {"trial": self._summaries.trial(job.name)})

    def _log(self, request: Request) -> Response:
        query = request.query_params
        choice = Choice(query.get("host") or None, _number(query.get("rank", "")), query.get("text", "")[:200])
        count = _number(query.get("count", ""))
        count = 200 if count is None else min(MAX_LINES, count)
        job = self._jobs.get(request.path_params["name"])
        if "after" in query:
            return _json(job.later_log(choice, _offsets(query["after"])))
        before = _offsets(query["before"]) if "before" in query else None
        return _json(job.log(choice, before=before, count=count))

    def _files(self, request: Request) -> Response:
        return _json({"files": listed_files(self._jobs.get(request.path_params["name"]).folder.path)})

    def _file(self, request: Request) -> Response:
        path = request.query_params.get("path", "")
        file, size = open_listed(self._jobs.get(request.path_params["name"]).folder.path, path)
        headers = {
            # Whatever a script wrote, it is saved and never shown.
            "content-disposition": f"attachment; filename*=utf-8''{quote(path.rpartition('/')[2])}",
            "content-security-policy": "sandbox; default-src 'none'",
            "content-length": str(size),
        }
        return StreamingResponse(_chunks(file, size), media_type="application/octet-stream", headers=headers)

    async def _list_stream(self, request: Request) -> Response:
        def look() -> str:
            # Not the running seconds, which the browser counts itself.
            lines = [{**line, "seconds": None} for line in self._summaries.lines()]
            return json.dumps(hash(repr((lines, self._tunings.all()))))

        return self._stream(request, look, lambda: False, 2 * self._pause)

    async def _tuning_stream(self, request: Request) -> Response:
        name = request.path_params["name"]
        await run_in_threadpool(self._tunings.get, name)

        def look() -> str:
            # At one moment of time, so that only what happens counts.
            return json.dumps(hash(repr(self._summaries.tuning(self._tunings.get(name), now=0.0))))

        return self._stream(request, look, lambda: self._tunings.get(name).done, self._pause)

    async def _job_stream(self, request: Request) -> Response:
        job = await run_in_threadpool(self._jobs.get, request.path_params["name"])

        def look() -> str:
            record = job.look()
            return json.dumps({"version": job.version, "log": job.log_sizes(), "state": record.secondary_status})

        return self._stream(request, look, lambda: job.over, self._pause)

    def _stream(
        self, request: Request, look: Callable[[], str], is_over: Callable[[], bool], pause: float
    ) -> StreamingResponse:
        """Return a stream of what `look` returns, whenever it changes, until `is_over` or the browser goes away."""

        async def messages() -> AsyncIterator[str]:
            last, silent = "", 0.0
            while not self._ends.is_set() and not await request.is_disconnected():
                over = is_over()
                try:
                    state = await run_in_threadpool(look)
                except HerringboneError as error:
                    # A service answers again; a job that was removed does not.
                    passes = isinstance(error, ServiceError)
                    yield f"event: {'trouble' if passes else 'gone'}\ndata: {json.dumps(str(error))}\n\n"
                    if not passes:
                        return
                    state = last
                if state != last:
                    last, silent = state, 0.0
                    yield f"data: {state}\n\n"
                elif silent >= _SILENCE_SECONDS:
                    silent = 0.0
                    yield ": still here\n\n"
                if over:
                    yield "event: over\ndata: {}\n\n"
                    return
                silent += pause
                try:
                    await asyncio.wait_for(self._ends.wait(), pause)
                except (asyncio.TimeoutError, TimeoutError):
                    continue

        return StreamingResponse(messages(), media_type="text/event-stream")


def _index(request: Request) -> Response:  # noqa: ARG001 - the signature is starlette's
    return FileResponse(STATIC / "index.html", media_type="text/html")


def _json(value: Any) -> Response:
    # msgspec writes a number that is not finite as null; the standard library would write NaN, which is no JSON.
    return Response(msgspec.json.encode(value), media_type="application/json")


def _number(text: str) -> int | None:
    """Return a number of a query; None for no number, and for one with more digits than any rank or place has."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _offsets(text: str) -> dict[str, int]:
    try:
        offsets = msgspec.json.decode(text, type=dict[str, int])
        return {host: min(max(0, offset), 10**_MAX_DIGITS) for host, offset in offsets.items()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    with file:
        # A file that grows meanwhile must not exceed the length that the header says.
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk


def _explain(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return PlainTextResponse(f"{error}\n", status_code=404 if isinstance(error, JobNotFoundError) else 500)


def _missing(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return PlainTextResponse(f"{error}\n", status_code=404)
