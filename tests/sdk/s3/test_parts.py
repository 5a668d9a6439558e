"""The pure parts: names of keys, steps of a sync, bodies in chunks, and the cache over a server that counts."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from herringbone.s3.cache import ObjectCache
from herringbone.s3.checkpoint_sync import FileState, plan_removals, plan_sync
from herringbone.s3.front.chunks import SIGNED, UNSIGNED_TRAILER, BodyCheck, Decoder
from herringbone.s3.front.conditions import Conditions
from herringbone.s3.front.documents import parse_deletion
from herringbone.s3.front.refusals import S3Error, Signer
from herringbone.s3.front.store import Store
from herringbone.s3.front.uploads import Uploads
from herringbone.s3.names import StoredObject, files_of, parse_manifest
from herringbone_contract.errors import InputError


def stored(key: str, size: int = 1, etag: str = "e") -> StoredObject:
    return StoredObject("mine", key, size, etag, 1_700_000_000)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a//b", "a/./b", "a\nb", "a\x7f", "x" * 256, ""])
def test_keys_that_are_no_files_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="rename the object"):
        files_of([(name, stored(name))], "s3://mine/data")


def test_a_key_that_is_both_file_and_folder_is_refused() -> None:
    with pytest.raises(InputError, match="a is an object, and a/b needs a folder of that name"):
        files_of([("a", stored("a")), ("a/b", stored("a/b"))], "s3://mine")
    # The mark of a folder, as consoles write it, is no file.
    assert list(files_of([("a/", stored("a/", size=0)), ("a/b", stored("a/b"))], "s3://mine")) == ["a/b"]


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'["a", "b"]', b'[{"prefix": "/x"}, "a"]', b'[{"prefix": "s3://b/"}, 1]']
)
def test_a_manifest_of_another_form_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match="manifest"):
        parse_manifest(text, "s3://mine/manifest")


def state(number: int) -> FileState:
    return FileState(number, number)


def test_a_checkpoint_is_sent_whole_and_its_manifest_last() -> None:
    now = {
        "a/manifest.json": state(1),
        "a/rank-00000.safetensors": state(2),
        ".b.7.unfinished/rank-00000.safetensors": state(3),
        "c/rank-00000.safetensors": state(4),
        "newest": state(5),
        "growing.pt": state(6),
    }
    steps = plan_sync(now, {**now, "growing.pt": state(5)}, {}, over=False)
    assert steps.send == ("a/rank-00000.safetensors", "a/manifest.json", "newest")
    # The folder c has no manifest, so it is no checkpoint even when the job is over.
    assert set(plan_sync(now, {}, {}, over=True).send) == {*steps.send, "growing.pt"}


def test_a_checkpoint_that_replaces_another_is_never_half_of_each() -> None:
    sent = {"a/manifest.json": state(1), "a/rank-00000.safetensors": state(1), "a/rank-00001.safetensors": state(1)}
    now = {"a/manifest.json": state(2), "a/rank-00000.safetensors": state(2)}
    steps = plan_sync(now, now, sent, over=False)
    assert steps.remove == ("a/manifest.json", "a/rank-00001.safetensors")
    assert steps.send == ("a/rank-00000.safetensors", "a/manifest.json")
    assert plan_sync(now, now, now, over=True) == ((), ())


@pytest.mark.parametrize(
    ("now", "sent", "removed", "names"),
    [
        # The successor is not sent, sent in part, changed since, and sent.
        ({"b/x": 1, "b/y": 1}, {"a/x": 1}, {"a": ["b"]}, []),
        ({"b/x": 1, "b/y": 1}, {"a/x": 1, "b/x": 1}, {"a": ["b"]}, []),
        ({"b/x": 2}, {"a/x": 1, "b/x": 1}, {"a": ["b"]}, []),
        ({"b/x": 1}, {"a/x": 1, "a/manifest.json": 1, "ab/x": 1, "b/x": 1}, {"a": ["b"]}, ["a/manifest.json", "a/x"]),
        # The successor is gone, too: its own one counts.
        ({"c.pt": 1}, {"a.pt": 1}, {"a.pt": ["b.pt"], "b.pt": ["c.pt"]}, []),
        ({"c.pt": 1}, {"a.pt": 1, "c.pt": 1}, {"a.pt": ["b.pt"], "b.pt": ["c.pt"]}, ["a.pt"]),
        # The script has written it anew, or removed all; one that went for the other.
        ({"a.pt": 2, "b.pt": 1}, {"a.pt": 1, "b.pt": 1}, {"a.pt": ["b.pt"]}, []),
        ({}, {"a.pt": 1, "b.pt": 1}, {"a.pt": ["b.pt"], "b.pt": ["a.pt"]}, []),
    ],
)
def test_a_removal_in_the_bucket_follows_the_whole_successor(now, sent, removed, names) -> None:
    states = [{name: FileState(3, time) for name, time in files.items()} for files in (now, sent)]
    assert list(plan_removals(*states, removed)) == names


class CountingServer:
    """Objects whose content is their key; counts the downloads."""

    endpoint = "http://counting"

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._lock = threading.Lock()

    def download(self, stored: StoredObject, file: IO[bytes], count: Callable[[int], None]) -> None:
        with self._lock:
            self.keys.append(stored.key)
        file.write(stored.key.encode())
        count(stored.size)


def test_concurrent_jobs_download_an_object_once(tmp_path: Path) -> None:
    server, cache = CountingServer(), ObjectCache(tmp_path / "cache", limit=1 << 30)
    files = {f"{number}.csv": stored(f"data/{number}", size=6) for number in range(8)}

    def run(job: int) -> None:
        cache.link(files, tmp_path / f"job-{job}", server, lambda _: None)

    threads = [threading.Thread(target=run, args=(job,)) for job in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.keys) == sorted(each.key for each in files.values())
    assert [(tmp_path / f"job-{job}/3.csv").read_text() for job in range(4)] == ["data/3"] * 4
    assert cache.missing(list(files.values()), server) == 0
    # Another ETag is another object.
    assert cache.missing([stored("data/3", size=6, etag="new")], server) == 6


def test_a_failed_download_ends_those_that_run(tmp_path: Path) -> None:
    begun = threading.Event()

    class EndlessServer(CountingServer):
        def download(self, stored: StoredObject, file: IO[bytes], count: Callable[[int], None]) -> None:
            if stored.key == "missing":
                begun.wait(60)
                raise InputError("there is no such object")
            while True:
                count(0)
                begun.set()

    files = {"a": stored("endless"), "b": stored("missing")}
    with pytest.raises(InputError, match="no such object"):
        ObjectCache(tmp_path / "cache", limit=1).link(files, tmp_path / "job", EndlessServer(), lambda _: None)


def error_of(call: Callable[[], object]) -> BaseException | None:
    """Return the error of a call; fail after 20 seconds."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test's thread looks at it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return errors[0] if errors else None


def test_a_wait_for_the_download_of_another_process_ends_with_the_call(tmp_path: Path) -> None:
    """Ctrl-C, or the failure of another object, must not wait until the other process is done."""
    server, cache = CountingServer(), ObjectCache(tmp_path / "cache", limit=1)
    cache.link({"a": stored("a")}, tmp_path / "first", server, lambda _: None)
    (whole,) = (tmp_path / "cache").glob("*/*")
    whole.unlink()

    class MissingServer(CountingServer):
        def download(self, stored: StoredObject, file: IO[bytes], count: Callable[[int], None]) -> None:
            raise InputError("no such object")

    with whole.with_name(f"{whole.name}.partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        files = {"a": stored("a"), "b": stored("missing")}
        error = error_of(lambda: cache.link(files, tmp_path / "job", MissingServer(), lambda _: None))
        assert isinstance(error, InputError)


def test_a_job_whose_folder_is_removed_ends(tmp_path: Path) -> None:
    class RemovingServer(CountingServer):
        def download(self, stored: StoredObject, file: IO[bytes], count: Callable[[int], None]) -> None:
            super().download(stored, file, count)
            (tmp_path / "job").rmdir()

    cache = ObjectCache(tmp_path / "cache", limit=1)
    error = error_of(lambda: cache.link({"a": stored("a")}, tmp_path / "job", RemovingServer(), lambda _: None))
    assert isinstance(error, FileNotFoundError)


def test_unused_objects_and_cut_downloads_make_room(tmp_path: Path) -> None:
    def free(folder: Path) -> int:
        return (64 << 20) + 4 - sum(path.stat().st_size for path in folder.glob("*/*"))

    server, cache = CountingServer(), ObjectCache(tmp_path / "cache", limit=1 << 30, free_bytes=free)
    files = {name: stored(name) for name in "abc"}
    cache.link(files, tmp_path / "job", server, lambda _: None)
    for name in "ab":
        (tmp_path / "job" / name).unlink()
    (whole,) = (path for path in (tmp_path / "cache").glob("*/*") if path.read_text() == "a")
    whole.with_name("cut.partial").write_text("x")
    # One byte was free, but for the cut download; `a` is needed, and `c` is a job's, so `b` goes.
    assert cache.make_room([files["a"], stored("de", size=2)], server) == 2
    assert [cache.missing([files[name]], server) for name in "abc"] == [0, 1, 0]
    with pytest.raises(InputError, match="make room"):
        cache.make_room([stored("long", size=5)], server)


def test_a_file_that_a_job_has_changed_is_downloaded_again(tmp_path: Path) -> None:
    server, cache = CountingServer(), ObjectCache(tmp_path / "cache", limit=1 << 30)
    files = {"a": stored("a")}
    cache.link(files, tmp_path / "one", server, lambda _: None)
    (tmp_path / "one/a").chmod(0o644)
    (tmp_path / "one/a").write_text("b")
    cache.link(files, tmp_path / "two", server, lambda _: None)
    assert (tmp_path / "two/a").read_text() == "a"


def test_the_objects_used_least_recently_are_evicted_and_those_of_jobs_stay(tmp_path: Path) -> None:
    server, cache = CountingServer(), ObjectCache(tmp_path / "cache", limit=2)
    files = {name: stored(name) for name in "abcd"}
    cache.link(files, tmp_path / "job", server, lambda _: None)
    assert cache.evict() == 0
    for number, name in enumerate("bcd"):
        os.utime(tmp_path / "job" / name, ns=(number, 1_700_000_000_000_000_000))
        (tmp_path / "job" / name).unlink()
    assert cache.evict() == 1
    assert (tmp_path / "job/a").read_text() == "a"
    assert cache.missing(list(files.values()), server) == 1
    assert cache.missing([files["b"]], server) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp037"])
@pytest.mark.parametrize("head", ["", '<?xml version="1.0" encoding="{}"?>'])
def test_documents_with_entities_are_refused_in_every_encoding(encoding: str, head: str) -> None:
    text = head.format(encoding) + '<!DOCTYPE d [<!ENTITY a "aaaa">]><d><Object><Key>&a;&a;</Key></Object></d>'
    with pytest.raises(S3Error, match="not well-formed"):
        parse_deletion(text.encode(encoding))


def test_the_first_object_makes_a_bucket_where_that_is_allowed(tmp_path: Path) -> None:
    store, absent = Store(tmp_path, new_buckets=True), Conditions(none_match="*")
    assert store.target("mine", make=False) == tmp_path / "mine"
    assert store.buckets() == []
    with pytest.raises(S3Error, match="does not exist: mine would be a folder"):
        store.open("mine", "a")
    store.check("mine", "a", absent)
    with store.new_file("mine") as file:
        store.keep(file, "mine", "a", "e", {}, conditions=absent)
    Uploads(store).create("other", "large", {})
    assert [name for name, _ in store.buckets()] == ["mine", "other"]
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for allowed, name in ((True, "link"), (True, "../up"), (False, "third")):
        with pytest.raises(S3Error), Store(tmp_path, new_buckets=allowed).new_file(name):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "other", "link"}


def test_a_folder_that_becomes_a_link_in_the_midst_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that may write into a bucket's folder replaces it by a link between the front's check and its rename."""
    (tmp_path / "secrets").mkdir()
    store = Store(tmp_path / "buckets")
    store.create_bucket("mine")
    folder = tmp_path / "buckets/mine/ck"

    def put(key: str) -> None:
        with store.new_file("mine") as file:
            file.write(b"mine")
            store.keep(file, "mine", key, "e", {})

    put("ck/keys.json")
    swapped = tmp_path / "buckets/mine/old"
    replace = os.replace

    def swap_and_replace(*names: Any, **folders: Any) -> None:
        if str(names[1]).endswith("keys.json"):
            folder.rename(swapped)
            folder.symlink_to(tmp_path / "secrets")
        replace(*names, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", swap_and_replace)
        put("ck/keys.json")
    assert list((tmp_path / "secrets").iterdir()) == []
    (tmp_path / "secrets/keys.json").write_text("secret")
    store.delete("mine", "ck/keys.json")
    assert (tmp_path / "secrets/keys.json").read_text() == "secret"
    with pytest.raises(S3Error, match="is a link"):
        put("ck/keys.json")
    with pytest.raises(S3Error, match="does not exist"):
        store.open("mine", "ck/keys.json")


def decoded(kind: str, body: bytes, piece: int, signer: Signer = Signer("me")) -> bytes:  # noqa: B008
    decoder = Decoder(kind, signer)
    content = b"".join(
        data for begin in range(0, len(body), piece) for data in decoder.feed(body[begin : begin + piece])
    )
    check = BodyCheck({"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": "10"})
    check.update(content)
    check.finish(decoder.finish())
    return content


BODY = b"4\r\nabcd\r\n6\r\nefghij\r\n0\r\nx-amz-checksum-crc32:OYFwOg==\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_a_chunked_body_is_decoded_however_it_is_cut(piece: int) -> None:
    assert decoded(UNSIGNED_TRAILER, BODY, piece) == b"abcdefghij"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b"abcd", b"abcx", "BadDigest"),
        (b"0\r\nx-amz", b"x-amz", "InvalidRequest"),
        (b"4\r\n", b"-4\r\n", "InvalidRequest"),
        (b"abcd\r\n", b"abcdefgh\r\n", "InvalidRequest"),
        (b"4\r\n", b"f" * 5000, "InvalidRequest"),
        (BODY[20:], b"", "IncompleteBody"),
        (b"x-amz-checksum-crc32:OYFwOg==\r\n", b"", "MalformedTrailerError"),
    ],
)
def test_a_chunked_body_that_is_not_what_it_says_is_refused(old: bytes, new: bytes, code: str) -> None:
    with pytest.raises(S3Error) as refused:
        decoded(UNSIGNED_TRAILER, BODY.replace(old, new, 1), 7)
    assert refused.value.code == code


def test_the_signatures_of_chunks_are_those_of_the_documentation() -> None:
    """The example of AWS's page on chunked uploads: 66,560 bytes of `a`."""
    key = bytes.fromhex(signing_key())
    signer = Signer(
        "me",
        key,
        "20130524/us-east-1/s3/aws4_request",
        "20130524T000000Z",
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    )
    body = b"".join(
        (
            b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
            b"a" * 65_536 + b"\r\n",
            b"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
            b"a" * 1_024 + b"\r\n",
            b"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
        )
    )
    decoder = Decoder(SIGNED, signer)
    assert b"".join(decoder.feed(body)) == b"a" * 66_560
    decoder.finish()
    with pytest.raises(S3Error, match="signature of a chunk"):
        list(Decoder(SIGNED, signer).feed(body.replace(b"aaa\r\n", b"aab\r\n", 1)))


def signing_key() -> str:
    """Return the key of the example's secret, day, region and service."""
    import hashlib
    import hmac

    key = b"AWS4wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    for part in ("20130524", "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
