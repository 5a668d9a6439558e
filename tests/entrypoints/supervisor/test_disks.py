"""The cause of a write that failed, from its words, the free bytes of disks and the limit of files."""

import pytest

from herringbone_contract.failure import Failure
from herringbone_entry.supervisor.failure import with_full_disk

FULL, ROOM = {"/jobs/a/model": 0}, {"/jobs/a/model": 1 << 40}
NO_SPACE = "[Errno 28] No space left on device"
TORCH = "PytorchStreamWriter failed writing file data/0: file write failed"
NUMPY = "9000000 requested and 512 written"
TOO_LARGE = "[Errno 27] File too large"


@pytest.mark.parametrize(
    "words", [NO_SPACE, TORCH, NUMPY, "[enforce fail at inline_container.cc:671] . unexpected pos"]
)
def test_a_write_that_failed_names_the_full_disk(words):
    message = with_full_disk(Failure(exception="X", message=words), FULL).message
    assert message.startswith(f"{words} (the disk of /jobs/a/model is full: 0 MB are free; ")
    # A program of another language says so in its last lines alone.
    assert "the disk of /jobs/a/model is full" in with_full_disk(Failure(exit_code=1, log_tail=(words,)), FULL).message


def test_a_disk_without_inodes_is_full_of_files():
    message = with_full_disk(Failure(exception="X", message=NO_SPACE), {"/jobs/a/model": -1}).message
    assert "the disk of /jobs/a/model is full: no inode is free" in message


@pytest.mark.parametrize("words", [TORCH, TOO_LARGE])
def test_a_limit_of_files_is_no_full_disk(words):
    message = with_full_disk(Failure(exception="X", message=words), ROOM, 4_000_000).message
    assert message == f"{words} (a file may have 4 MB at most, by `ulimit -f` where the job was started)"


@pytest.mark.parametrize(
    ("words", "free", "most_bytes"),
    [
        # The disk is nearly full, and that is not why the job failed.
        ("boom", FULL, None),
        ("[Errno 30] Read-only file system", FULL, 4_000_000),
        ("[Errno 122] Disk quota exceeded", FULL, None),
        (TOO_LARGE, FULL, None),
        (NO_SPACE, ROOM, None),
    ],
)
def test_other_failures_keep_their_words(words, free, most_bytes):
    assert with_full_disk(Failure(exception="X", message=words), free, most_bytes).message == words
