"""Hostile requests of each operation of the service's S3 and of each address of the page: none is an error of ours.

Usage: `.venv/bin/python -m tests.campaigns.hostile_requests [--inputs N]` from the root of the repository, N for
each of the two. The last line is JSON. `fuzz` of `tests/serve/test_app.py` has those of the other operations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from herringbone.records.home import Home
from herringbone.s3.front.app import make_app
from herringbone.s3.front.chunks import CHUNKED
from herringbone.s3.front.operations import OPERATIONS
from herringbone.s3.front.refusals import HttpRequest, Signer
from herringbone.s3.front.store import Store
from herringbone.views.page.server import Server
from tests.page.make_jobs import make_job, write_log
from tests.serve.signing import LOOP

TEXTS = (
    "", "0", "-1", "9" * 5000, "1e9", "\u0663", "nan", "a", "a" * 2000, "../../etc/passwd", "..", "a/../b", "a\0b",
    "%00", "\x85", "\u202e", "\ud800", "bytes=0-", "bytes=-0", f"bytes={'9' * 19}-", "mine/a", "/mine/a?versionId=1",
    "*", '"0a"', "true", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 99 Foo 0000",
    "{", '{"algo-1": 1e400}', '{"algo-1": 99999999999999999999999}',
    '{"algo-1": -5}', "algo-1", "<a>", "aws-chunked", "url", "1000000000000000000000",
)  # fmt: skip
OF_BODIES = (
    "x-amz-content-sha256", "x-amz-decoded-content-length", "content-md5", "range", "x-amz-trailer", "content-length",
)  # fmt: skip
BODIES = (
    b"", b"<", b"<a/>", b"<Delete><Object><Key>a</Key></Object></Delete>",
    b"<Delete>" + b"<Object/>" * 2000 + b"</Delete>",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    b"\xff\xfe\x00", b"1\r\nx\r\n0\r\n\r\n", b"-1\r\n", b"f" * 5000 + b"\r\n", b"1\r\nx\r\n" * 50, b"0\r\nx\r\n\r\n",
    b'<!DOCTYPE a [<!ENTITY b "c">]><Delete>&b;</Delete>', b"[" * 900,
)  # fmt: skip


async def _status(app: Any, scope: dict[str, Any], body: bytes) -> int:
    sent: list[Any] = []
    parts = [body]

    async def receive() -> Any:
        if not parts:
            # A client that waits for the answer.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "query_string": b"", "client": ("127.0.0.1", 1), **scope}, receive, send)
    return int(sent[0]["status"])


def _scope(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    encoded = [f"{quote(name)}={quote(text, errors='surrogatepass')}" for name, text in query.items()]
    raw_path = quote(path, errors="surrogatepass")
    return {
        "method": method,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": "&".join(encoded).encode(),
        # Bytes that h11 takes in a header.
        "headers": [
            (name.encode(), bytes(each for each in text.encode("utf-8", "surrogatepass") if each > 31 and each != 127))
            for name, text in headers.items()
        ],
    }


def s3_campaign(folder: Path, *, inputs: int, seed: int = 0) -> dict[str, Any]:
    """Send requests in which members of each operation are wrong; return the numbers of statuses and what failed."""
    rng = random.Random(seed)
    store = Store(folder)
    store.create_bucket("mine")

    def verifier(_: HttpRequest) -> Signer:
        return Signer("ada", repeats=rng.random() < 0.1)

    app = make_app(folder, verifier)

    def ask() -> tuple[str, dict[str, Any], bytes]:
        operation = rng.choice(OPERATIONS)
        key = {"service": "/", "bucket": "/mine", "object": "/mine/"}[operation.resource]
        if operation.resource == "object":
            key += rng.choice(("a", "b/c", "a/", "//", ".", "..", "a" * 300, "\u00fc", rng.choice(TEXTS)))
        query = {operation.option: rng.choice(TEXTS)} if operation.option else {}
        members = rng.sample(operation.members, min(len(operation.members), rng.randrange(4)))
        sums = (
            "x-amz-content-sha256",
            "x-amz-decoded-content-length",
            "content-md5",
            "range",
            "x-amz-trailer",
            "content-length",
        )
        headers = {"host": "127.0.0.1", rng.choice(sums): rng.choice((*TEXTS, *CHUNKED))}
        for name in members:
            name += "x" * name.endswith("-")
            (headers if name.startswith(("x-amz", "if-")) else query)[name] = rng.choice(TEXTS)
        return operation.name, _scope(operation.method, key, query, headers), rng.choice(BODIES)

    return _sent(app, ask, inputs)


def page_campaign(home: Home, *, inputs: int, seed: int = 0) -> dict[str, Any]:
    """Ask for addresses of the page with wrong members; return the numbers of statuses and what failed."""
    rng = random.Random(seed)
    job = make_job(home, "a", created=time.time())
    write_log(job, "algo-1", [(float(number), 0, "line") for number in range(9)])
    app = Server(home).app("t")
    places = ("log", "files", "file", "")
    words = ("rank", "host", "text", "count", "after", "before", "path", "jobs")

    def ask() -> tuple[str, dict[str, Any], bytes]:
        place = rng.choice(places)
        name = rng.choice(("a", "a", "a", rng.choice(TEXTS)))
        path = rng.choice(
            (f"/api/jobs/{name}/{place}", f"/api/tunings/{name}", "/api/differences", "/api/jobs", f"/static/{name}")
        )
        query = {word: rng.choice(TEXTS) for word in rng.sample(words, rng.randrange(4))}
        headers = {"host": "localhost", "cookie": f"{app.cookie}=t"}
        return path[:40], _scope(rng.choice(("GET", "HEAD")), path, query, headers), b""

    return _sent(app, ask, inputs)


def _sent(app: Any, ask: Callable[[], tuple[str, dict[str, Any], bytes]], inputs: int) -> dict[str, Any]:
    statuses: Counter[int] = Counter()
    failed: dict[str, str] = {}
    for _ in range(inputs):
        name, scope, body = ask()
        try:
            status = LOOP.run_until_complete(_status(app, scope, body))
        except Exception as error:  # noqa: BLE001 - what it is to find
            failed[f"{name}: {type(error).__name__}"] = f"{error} {scope} {body[:60]!r}"
            continue
        statuses[status] += 1
        if status >= 500 and status not in (501, 503):
            failed[f"{name}: {status}"] = f"{scope} {body[:60]!r}"
    return {"statuses": dict(sorted(statuses.items())), "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HERRINGBONE_HOME"] = str(Path(folder) / "home")
        home = Home(Path(folder) / "home")
        home.make()
        (buckets := Path(folder) / "buckets").mkdir()
        results = {"s3": s3_campaign(buckets, inputs=arguments.inputs)}
        results["page"] = page_campaign(home, inputs=arguments.inputs)
    for result in results.values():
        for name, text in result["failed"].items():
            print(ascii(name), ascii(text)[:600])
    print(json.dumps({name: result["statuses"] for name, result in results.items()}))
    return 1 if any(result["failed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
