"""A crash in the middle of a call leaves what was before, or what the call was to make."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from herringbone.s3.front import removal, uploads
from herringbone.s3.front.app import make_app
from herringbone.s3.front.refusals import S3Error, Signer
from herringbone.s3.front.removal import remove_abandoned
from herringbone.s3.front.store import Store
from herringbone.s3.front.uploads import Uploads

ETAG = "0" * 32


class Crash(BaseException):
    """The end of the process, which nothing handles."""


def crash(*_: object, **__: object) -> Any:
    raise Crash


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.create_bucket("mine")
    return store


def put(store: Store, content: bytes, **meta: str) -> None:
    with store.new_file("mine") as file:
        file.write(content)
        store.keep(file, "mine", "k", content.hex(), meta)


def begin(store: Store, key: str = "k") -> tuple[Uploads, str]:
    """Begin an upload of one part."""
    parts = Uploads(store)
    upload = parts.create("mine", key, {"x": "new"})
    with store.new_file("mine") as file:
        file.write(b"part")
        parts.add("mine", key, upload, 1, file, ETAG)
    return parts, upload


def test_a_write_that_is_cut_leaves_the_old_object_with_its_facts(store, tmp_path, monkeypatch):
    """The facts of the new object took the place of the old one's, before the new object had the name."""
    put(store, b"old", x="1")
    replace = os.replace
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *a, **k: crash() if "dst_dir_fd" in k else replace(*a, **k))
            with pytest.raises(Crash):
                put(store, b"new", x="2")
        facts = Store(tmp_path).facts("mine", "k")
        assert (facts.etag, facts.meta) == (b"old".hex(), {"x": "1"})
    put(store, b"new", x="2")
    assert Store(tmp_path).facts("mine", "k").meta == {"x": "2"}


@pytest.mark.parametrize(
    "facts", [b"[]", b"{}", b'{"of": 1}', b'{"of": [], "key": "", "etag": 1, "meta": {}}', b"\xff"]
)
def test_facts_of_a_jobs_making_are_none(store, tmp_path, facts):
    """A job that may write into a bucket can change the front's own files there."""
    put(store, b"content", x="1")
    (path,) = (tmp_path / "mine/.herringbone/facts").glob("*/*.json")
    path.write_bytes(facts)
    assert store.facts("mine", "k").meta == {}


def test_a_deletion_of_a_bucket_that_is_cut_leaves_all_of_it_or_nothing(store, tmp_path, monkeypatch):
    _, upload = begin(store)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(Crash):
            store.delete_bucket("mine")
    assert [part.number for part in Uploads(store).parts("mine", "k", upload)] == [1]
    with monkeypatch.context() as patch:
        patch.setattr(removal.safe_tree, "remove", crash)
        with pytest.raises(Crash):
            store.delete_bucket("mine")
    assert store.buckets() == []
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_comes_into_a_bucket_while_it_is_deleted_stays(store, tmp_path, monkeypatch):
    looks = iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr("herringbone.s3.front.store.has_files", lambda _: next(looks))
        patch.setattr(removal, "has_files", lambda _: next(looks))
        with pytest.raises(S3Error, match="not empty"):
            store.delete_bucket("mine")
    assert [name for name, _ in store.buckets()] == ["mine"]
    (tmp_path / "mine").rename(tmp_path / ".herringbone-deleted-mine")
    (tmp_path / ".herringbone-deleted-mine" / "precious").write_text("x")
    remove_abandoned(tmp_path)
    assert (tmp_path / "mine" / "precious").exists()


def test_a_completion_that_is_cut_leaves_the_upload_or_the_object(store, monkeypatch):
    parts, upload = begin(store)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "keep", crash)
        with pytest.raises(Crash):
            parts.complete("mine", "k", upload, [(1, ETAG)])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(Crash):
            parts.complete("mine", "k", upload, [(1, ETAG)])
    assert parts.all("mine") == []
    # The client has no answer yet, and asks again.
    again = Uploads(store).complete("mine", "k", upload, [(1, ETAG)])
    assert again == store.facts("mine", "k")
    assert again.meta == {"x": "new"}
    for wanted in ([(1, "1" * 32)], [(1, "none")]):
        with pytest.raises(S3Error, match="does not exist"):
            parts.complete("mine", "k", upload, wanted)


def test_a_large_upload_that_is_completed_holds_up_no_other(store, monkeypatch):
    parts, large = begin(store, "large")
    _, small = begin(store, "small")
    copies, may_go, copy = threading.Event(), threading.Event(), shutil.copyfileobj

    def slow_copy(source: Any, target: Any, length: int) -> None:
        if large in source.name:
            copies.set()
            may_go.wait(60)
        copy(source, target, length)

    monkeypatch.setattr(uploads.shutil, "copyfileobj", slow_copy)
    thread = threading.Thread(target=parts.complete, args=("mine", "large", large, [(1, ETAG)]))
    thread.start()
    try:
        assert copies.wait(30)
        other = threading.Thread(target=parts.complete, args=("mine", "small", small, [(1, ETAG)]), daemon=True)
        other.start()
        other.join(30)
        assert not other.is_alive()
    finally:
        may_go.set()
        thread.join()
    assert list(store.keys("mine")) == ["large", "small"]


def test_what_a_killed_service_was_writing_goes_at_the_next_start(store, tmp_path, monkeypatch):
    """It stayed for a week, and unfinished facts for ever."""
    parts, upload = begin(store)
    put(store, b"old")
    own = tmp_path / "mine" / ".herringbone"
    unfinished = [own / "new" / "tmp1", own / "facts/00/.1.partial", own / "uploads" / upload / ".2.partial"]
    for path in unfinished:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    (own / "new" / "removed").mkdir()
    (tmp_path / "mine" / ".a.partial").write_text("a job writes it")
    other = removal.held_alone(tmp_path)
    assert other is not None
    # Another service may write to them.
    make_app(tmp_path, lambda _: Signer("me"))
    assert all(path.exists() for path in unfinished)
    os.close(other)
    make_app(tmp_path, lambda _: Signer("me"))
    assert not any(path.exists() for path in (*unfinished, own / "new" / "removed"))
    assert (tmp_path / "mine" / ".a.partial").exists()
    assert [part.number for part in parts.parts("mine", "k", upload)] == [1]
    assert store.facts("mine", "k").etag == b"old".hex()
