"""One caller's work in the front of S3 leaves the others their threads, and the loop its time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from herringbone.s3.front import uploads
from herringbone.s3.front.app import make_app
from herringbone.s3.front.chunks import UNSIGNED_TRAILER, Decoder
from herringbone.s3.front.refusals import HttpRequest, Signer
from herringbone.s3.front.store import Store


def verifier(request: HttpRequest) -> Signer:
    return Signer(request.header("x-id"), repeats=bool(request.header("x-repeats")))


async def answer(app: Any, method: str, path: str, user: str, body: bytes = b"", **headers: str) -> int:
    """Send a request of a user, and return the status of its answer."""
    pairs = [("x-id", user), *((name.replace("_", "-"), value) for name, value in headers.items())]
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in pairs]
    sent = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


def test_slow_objects_of_one_caller_delay_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 45 HEADs computed an ETag in one of the 40 threads that all callers had."""
    Store(tmp_path).create_bucket("mine")
    (tmp_path / "mine" / "a").write_text("a")
    may_go, find = threading.Event(), Store._find

    def slow_find(store: Store, top: Path, key: str) -> Any:
        assert key == "a" or may_go.wait(60)
        return find(store, top, "a")

    monkeypatch.setattr(Store, "_find", slow_find)
    app = make_app(tmp_path, verifier)

    async def run() -> tuple[int, list[int]]:
        slow = [asyncio.create_task(answer(app, "HEAD", "/mine/slow", "ada")) for _ in range(45)]
        await asyncio.sleep(0)
        quick = await asyncio.wait_for(answer(app, "HEAD", "/mine/a", "bob"), 30)
        may_go.set()
        return quick, [await task for task in slow]

    try:
        assert asyncio.run(run()) == (200, [200] * 45)
    finally:
        may_go.set()


def test_chunks_are_decoded_outside_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path).create_bucket("mine")
    threads, feed = set(), Decoder.feed

    def noted(decoder: Decoder, piece: bytes) -> Any:
        threads.add(threading.get_ident())
        return feed(decoder, piece)

    monkeypatch.setattr(Decoder, "feed", noted)
    body = b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"
    app = make_app(tmp_path, verifier)
    headers = {"x_amz_content_sha256": UNSIGNED_TRAILER, "x_amz_decoded_content_length": "1000"}
    assert asyncio.run(answer(app, "PUT", "/mine/tiny", "ada", body, **headers)) == 200
    assert (tmp_path / "mine" / "tiny").read_bytes() == b"x" * 1000
    assert threads
    assert threading.get_ident() not in threads


def test_the_time_for_chunks_of_one_byte_grows_with_their_number_alone() -> None:
    def seconds(count: int) -> float:
        decoder, begin = Decoder(UNSIGNED_TRAILER, Signer("ada")), time.process_time()
        assert sum(map(len, decoder.feed(b"1\r\nx\r\n" * count))) == count
        return time.process_time() - begin

    # With a copy of the rest for each chunk, it were 100 times as long, and more than a minute.
    assert seconds(200_000) < 30 * max(seconds(20_000), 0.01)


def test_a_write_that_comes_again_has_no_effect_or_is_refused(tmp_path: Path) -> None:
    """Whoever had recorded a PUT could bring an old object back for 15 minutes."""
    Store(tmp_path).create_bucket("mine")
    app, file = make_app(tmp_path, verifier), tmp_path / "mine" / "a"

    def again(method: str, path: str, body: bytes = b"", **headers: str) -> int:
        return asyncio.run(answer(app, method, path, "ada", body, x_repeats="1", **headers))

    def write(method: str, body: bytes = b"") -> int:
        return asyncio.run(answer(app, method, "/mine/a", "ada", body))

    assert again("PUT", "/mine/a", b"old") == 503
    assert write("PUT", b"old") == again("PUT", "/mine/a", b"old") == 200
    assert write("PUT", b"new") == 200
    assert again("PUT", "/mine/a", b"old") == again("DELETE", "/mine/a") == 503
    assert file.read_bytes() == b"new"
    assert write("DELETE") == again("DELETE", "/mine/a") == 204
    assert again("PUT", "/mine/a", b"new") == again("PUT", "/mine/b", x_amz_copy_source="mine/a") == 503
    assert again("PUT", "/yours") == again("DELETE", "/mine") == 503
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not file.exists()


def test_a_call_whose_upload_or_bucket_another_one_removes_is_no_error_of_ours(tmp_path, monkeypatch) -> None:
    """They were answered by 500, and a bucket that was deleted meanwhile came back."""
    store, app = Store(tmp_path), make_app(tmp_path, verifier)
    store.create_bucket("mine")
    parts = uploads.Uploads(store)

    async def call(method: str, path: str, body: bytes = b"") -> int:
        return await answer(app, method, path, "ada", body)

    upload, sync = parts.create("mine", "a", {}), uploads.sync

    def abort_once(path: Any) -> None:
        monkeypatch.setattr(uploads, "sync", sync)
        parts.abort("mine", "a", upload)

    monkeypatch.setattr(uploads, "sync", abort_once)
    assert asyncio.run(call("PUT", f"/mine/a?uploadId={upload}&partNumber=1", b"x")) == 404

    for again in (True, False):
        keep = Store.keep

        def deleted_first(*arguments: Any, again: bool = again, keep: Any = keep, **options: Any) -> Any:
            store.delete_bucket("mine")
            if again:
                store.create_bucket("mine")
            return keep(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "keep", deleted_first)
            assert asyncio.run(call("PUT", "/mine/a", b"x")) == (409 if again else 404)
    target = store.target
    store.create_bucket("mine")
    monkeypatch.setattr(store, "target", lambda name: (target(name), store.delete_bucket(name))[0])
    with pytest.raises(FileNotFoundError), store.new_file("mine"):
        pass
    assert store.buckets() == []


def test_an_answer_that_nobody_reads_holds_little_memory(tmp_path: Path) -> None:
    """64 downloads of one key held 250 MB, because each had several copies of a piece."""
    Store(tmp_path).create_bucket("mine")
    (tmp_path / "mine" / "big").write_bytes(bytes(3 << 20))
    sizes: list[int] = []

    async def send(message: Any) -> None:
        sizes.append(len(message.get("body", b"")))

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/mine/big", "raw_path": b"/mine/big", "query_string": b""}
    asyncio.run(make_app(tmp_path, verifier)({**scope, "headers": []}, receive, send))
    assert sum(sizes) == 3 << 20
    assert max(sizes) <= 256 << 10
