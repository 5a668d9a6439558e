"""Keys and files: each file of a bucket is an object, each key has a place, and both ways agree."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from herringbone.s3.front.keys import key_apart, key_of, path_apart, path_of
from herringbone.s3.front.removal import APART, has_files
from herringbone.s3.front.store import Store

PARTS = [
    "",
    ".",
    "..",
    "a",
    "A",
    "b",
    "%",
    "50%.csv",
    "%25",
    "\\",
    "\t",
    "\n",
    "\0",
    "\x7f",
    ".herringbone",
    ".x.partial",
]
PARTS += [
    "\u00e9",
    "e\u0301",
    "\uf7ff",
    "\uf7c3\uf7a9",
    "\U0010ffff",
    "-rf",
    "+",
    "=a",
    " ",
    "x" * 255,
    "x" * 256,
    "~",
    "&<",
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.create_bucket("mine")
    return store


def put(store: Store, key: str) -> None:
    with store.new_file("mine") as file:
        file.write(key.encode())
        store.keep(file, "mine", key, "0" * 32, {})


def read(store: Store, key: str) -> bytes:
    with store.open("mine", key)[0] as file:
        return file.read()


def test_files_of_any_name_are_objects(store, tmp_path):
    """Those with `%`, control characters or bytes that are no UTF-8 were none, or objects of another key."""
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"./"]
    names += [b".hidden", b"50%25.csv", b"a%", b"caf\xe9", "caf\u00e9".encode(), "\uf7ff".encode(), b"\xed\xb3\xbf"]
    names += [b"no\xff/\xfe", b".config/x", b"/".join([b"in"] * 340), b"x" * 250 + b"/" + b"y" * 250 + b"/z" * 400]
    for number, name in enumerate(names):
        path = os.fsencode(tmp_path / "mine") + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_text(str(number))
    keys = list(store.keys("mine"))
    assert keys == sorted({key_of(os.fsdecode(name)) for name in names}, key=str.encode)
    assert len(keys) == len(names)
    for number, name in enumerate(names):
        assert read(store, key_of(os.fsdecode(name))) == str(number).encode()
    for key in keys:
        store.delete("mine", key)
    assert os.listdir(tmp_path / "mine") == [".herringbone"]
    assert not has_files(tmp_path / "mine")


def test_keys_of_any_form_are_listed_in_order_and_read_back(store, tmp_path):
    rng = random.Random(41)
    keys = {"/".join(rng.choices(PARTS, k=rng.choice((1, 1, 2, 2, 3, 4)))) for _ in range(300)} | set(PARTS)
    keys |= {"x" * 1024, "a/" * 511 + "a", "\u00e9" * 512, "%" * 1024}
    keys = sorted((key for key in keys if 0 < len(key.encode()) <= 1024), key=lambda _: rng.random())
    for key in keys:
        put(store, key)
    assert list(store.keys("mine")) == sorted(keys, key=str.encode)
    for key in keys:
        assert read(store, key) == key.encode()
        if (path := path_of(key)) is not None and (tmp_path / "mine" / path).is_file():
            # What a job finds by this path.
            assert (tmp_path / "mine" / path).read_bytes() == key.encode()
    after = rng.choice(keys)
    assert list(store.keys("mine", after=after)) == sorted((key for key in keys if key > after), key=str.encode)
    assert has_files(tmp_path / "mine")
    for key in keys:
        store.delete("mine", key)
        assert not store.exists("mine", key)
    assert os.listdir(tmp_path / "mine") == [".herringbone"]
    assert not (tmp_path / "mine" / APART).exists()


@pytest.mark.parametrize("keys", [("a", "a/b"), ("a/b", "a"), ("a", "a/", "a/b/c"), ("a/b/c", "a/b", "a")])
def test_a_key_may_be_the_folder_of_another(store, keys):
    for _ in range(2):
        for key in keys:
            put(store, key)
    assert list(store.keys("mine")) == sorted(keys)
    for key in keys:
        store.delete("mine", key)
    put(store, "a")
    assert list(store.keys("mine")) == ["a"]
    store.delete("mine", "a")
    assert list(store.keys("mine")) == []


def test_a_file_of_the_users_hides_no_object_that_lies_apart(store, tmp_path):
    put(store, "a/b")
    put(store, "a")
    store.delete("mine", "a/b")
    (tmp_path / "mine/a").write_text("by hand")
    store.delete("mine", "a")
    assert not store.exists("mine", "a")


@pytest.mark.parametrize("key", ["..", "a//b", "%", "\0", "x" * 1024, "\uf7ff", "a"])
def test_a_place_apart_leads_back_to_its_key(key):
    assert key_apart(path_apart(key).removeprefix(f"{APART}/")) == key
    assert not {".", "..", ""} & set(path_apart(key).split("/"))


@pytest.mark.parametrize("path", ["a", "=", "+a/b", "=\udcff", "=%2", "=%FF", "=a%2f", "+a/=b"])
def test_files_of_others_among_those_apart_are_no_objects(path):
    assert key_apart(path) is None
