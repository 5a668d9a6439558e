"""Trees that a script may change: nothing is opened, listed or removed through a link."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from herringbone_contract import safe_tree


@pytest.fixture
def outside(tmp_path) -> Path:
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    (tmp_path / "outside" / "precious").write_text("precious")
    return tmp_path / "outside"


@pytest.fixture
def tree(tmp_path, outside) -> Path:
    """A tree with one entry of each kind."""
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_text("text")
    (tree / "link").symlink_to(outside)
    (tree / "a" / "up").symlink_to("..")
    os.mkfifo(tree / "pipe")
    # The path of a socket is limited to about 100 bytes.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        os.rename(f"{short}/s", tree / "socket")
    return tree


def test_a_walk_names_each_entry_and_follows_no_link(tree):
    with safe_tree.folder(tree) as top:
        assert [(entry.name, entry.kind) for entry in safe_tree.walk(top)] == [
            ("a", "folder"),
            ("a/b", "folder"),
            ("a/file", "file"),
            ("a/up", "link"),
            ("link", "link"),
            ("pipe", "FIFO"),
            ("socket", "socket"),
        ]


def test_a_tree_of_files_and_folders_alone_is_told_from_others(tree):
    with safe_tree.folder(tree / "a" / "b") as top:
        assert safe_tree.has_only_files(top)
        (tree / "a" / "b" / "c").mkdir()
        (tree / "a" / "b" / "c" / "file").touch()
        assert safe_tree.has_only_files(top)
        for make in (lambda path: path.symlink_to("file"), os.mkfifo):
            make(tree / "a" / "b" / "c" / "odd")
            assert not safe_tree.has_only_files(top)
            (tree / "a" / "b" / "c" / "odd").unlink()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("link", "link"),
        ("link/precious", "link"),
        ("a/up/a/file", "link"),
        ("pipe", "not a regular file"),
        ("socket", "socket"),
        ("a", "not a regular file"),
        ("a/../../outside/precious", "leads out"),
        ("/etc/passwd", "leads out"),
    ],
)
def test_only_regular_files_of_the_tree_are_read(tree, name, reason):
    with pytest.raises(OSError, match=reason):
        safe_tree.read_file(tree, name, limit=10)
    assert not safe_tree.exists(tree, name)
    assert safe_tree.read_file(tree, "a/file", limit=3) == b"tex"


def test_removal_removes_links_and_never_their_targets(tree, outside):
    with safe_tree.folder(tree) as top:
        for name in ("link", "a", "pipe", "socket", "nothing"):
            safe_tree.remove(top, name)
    assert list(tree.iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == ["precious", "sub"]


def test_a_folder_takes_the_place_of_a_link(tree, outside):
    with safe_tree.folder(tree) as top:
        assert safe_tree.make_folder(top, "link")
        assert not safe_tree.make_folder(top, "link")
        assert not safe_tree.make_folder(top, "new")
    assert list((tree / "link").iterdir()) == []
    assert (outside / "precious").exists()


def test_folders_without_end_are_refused_by_a_walk_and_removed(tmp_path):
    """Deeper than descriptors and than Python's recursion: 1,500 folders."""
    home = os.getcwd()
    (tmp_path / "tree").mkdir()
    os.chdir(tmp_path / "tree")
    try:
        for _ in range(1_500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(home)
    with safe_tree.folder(tmp_path) as top:
        with pytest.raises(OSError, match="nested more than 200 deep"):
            list(safe_tree.walk(top))
        safe_tree.remove(top, "tree")
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_stays_open(tree):
    before = len(os.listdir("/proc/self/fd" if os.path.exists("/proc") else "/dev/fd"))
    with safe_tree.folder(tree) as top:
        list(safe_tree.walk(top))
        next(safe_tree.walk(top))
        assert not safe_tree.has_only_files(top)
        for name in ("pipe", "link", "a/up/x"):
            assert not safe_tree.exists(top, name)
        safe_tree.remove(top, "a")
    assert len(os.listdir("/proc/self/fd" if os.path.exists("/proc") else "/dev/fd")) == before


def test_read_only_and_unreadable_folders_are_removed(tmp_path):
    """As a user without privileges: root may remove everything anyway."""
    (tmp_path / "tree" / "shut" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "shut" / "below" / "file").touch()
    (tmp_path / "tree" / "deaf").mkdir()
    for path, mode in (("tree/shut/below", 0o500), ("tree/shut", 0o555), ("tree/deaf", 0)):
        (tmp_path / path).chmod(mode)
    top = os.open(tmp_path, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                for path in (tmp_path, *tmp_path.rglob("*")):
                    os.chown(path, 65534, 65534)
                # The folders above belong to root; the descriptor leads past them.
                os.setuid(65534)
            safe_tree.remove(top, "tree")
        finally:
            os._exit("tree" in os.listdir(top))
    os.close(top)
    assert os.waitpid(child, 0)[1] == 0
