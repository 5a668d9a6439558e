"""Fixtures: a home with made jobs, the page's server over it, and a browser."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import uvicorn
from tests.page.browser import Browser, BrowserError
from tests.page.make_jobs import make_many, show_case

from herringbone.records.home import Home
from herringbone.views.page.server import Server

TOKEN = "the-token"  # noqa: S105


@dataclass
class Page:
    """A running server: its port, and its home."""

    port: int
    home: Home

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of an answer; without a `cookie`, the right one is sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {
            "cookie": f"{self.cookie}={TOKEN}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection.request(sent.pop("method", "GET"), path, headers={k: v for k, v in sent.items() if v})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    cookie: str = ""


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A server over an empty home; tests make jobs of their own names in it."""
    home = Home(tmp_path_factory.mktemp("page") / "home")
    home.make()
    before = os.environ.get("HERRINGBONE_HOME")
    os.environ["HERRINGBONE_HOME"] = str(home.path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(home, pause=0.1)
        app = server.app(TOKEN)
        runner = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]})
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield Page(listener.getsockname()[1], home, app.cookie)
        server.end()
        runner.should_exit = True
        thread.join(10)
    if before is None:
        del os.environ["HERRINGBONE_HOME"]
    else:
        os.environ["HERRINGBONE_HOME"] = before


@pytest.fixture(scope="session")
def hundred(page: Page) -> None:
    """A hundred jobs: those of the pictures, and a sweep."""
    show_case(page.home, time.time())
    make_many(page.home, 95, time.time() - 40_000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests; skips the tests that need it where there is none."""
    try:
        browser = Browser()
    except BrowserError as error:
        pytest.skip(str(error))
    with browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser, page: Page) -> Iterator[Browser]:
    """The browser, let in by the server; a test fails when a page has reported an error."""
    chromium.size(1280, 900)
    chromium.scheme("light")
    chromium.open(f"{page.address}/?token={TOKEN}", until="location.search === '' && !!document.querySelector('.jobs')")
    chromium.problems.clear()
    yield chromium
    chromium.open("about:blank")
    assert chromium.problems == []
