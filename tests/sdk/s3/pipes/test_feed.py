"""One feeder in a thread, and readers of each temper: whole epochs, early closes, none at all, broken data."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from herringbone.s3.pipes.feed import Feeder
from herringbone.s3.pipes.order import FeedOrder, Pipe, renew_fifos

LONG = b"x" * 3_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "ml/input/data"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "training_0")
    return folder


def pipe(data: Path, files: dict[str, bytes], **settings: Any) -> Pipe:
    source = data.parent.parent.parent / "source"
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    base = str(data.parent.parent)
    return Pipe(base=base, channel="training", address=str(source), data=str(source), **settings)


def start(pipe: Pipe, epochs: int) -> threading.Thread:
    def connect() -> Any:
        raise AssertionError("no S3 here")

    thread = threading.Thread(target=Feeder(pipe, connect).run, args=(epochs,), daemon=True)
    thread.start()
    return thread


def test_every_epoch_has_a_fifo_of_its_own(data: Path) -> None:
    feeder = start(pipe(data, {"b": b"2", "a": b"1", "deep/c": b"3"}), 3)
    for epoch in range(3):
        # Without a wait: the next one exists before the last one ends.
        assert (data / f"training_{epoch}").read_bytes() == b"123"
        assert not (data / f"training_{epoch}").exists()
    feeder.join(10)
    assert os.listdir(data) == ["training_3"]


def test_a_reader_may_leave_early(data: Path) -> None:
    feeder = start(pipe(data, {"a": LONG, "b": LONG}), 4)
    for epoch in range(3):
        with (data / f"training_{epoch}").open("rb", buffering=0) as fifo:
            assert fifo.read(10) == b"x" * 10
    with (data / "training_3").open("rb") as fifo:
        assert len(fifo.read()) == 2 * len(LONG)
    feeder.join(10)
    assert not feeder.is_alive()


def test_a_host_reads_its_share_as_records(data: Path) -> None:
    files = {"a": b"1", "b": b"22", "c": b"333"}
    feeder = start(pipe(data, files, wrap=True, position=0, hosts=2), 1)
    text = (data / "training_0").read_bytes()
    assert text == b"".join(
        b"\x0a\x23\xd7\xce" + len(part).to_bytes(4, "little") + part.ljust(4, b"\0") for part in (b"1", b"333")
    )
    feeder.join(10)


def test_a_file_in_the_place_of_a_fifo_is_never_written(data: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("untouched")
    for replaced in ("link", "file"):
        (data / "training_0").unlink()
        (data / "training_0").symlink_to(tmp_path / "precious") if replaced == "link" else (
            data / "training_0"
        ).write_text("mine")
        with pytest.raises(OSError, match=r"replaced the FIFO|Too many levels"):
            Feeder(pipe(data, {"a": b"1"}), lambda: None).run(1)  # type: ignore[arg-type, return-value]
    assert (tmp_path / "precious").read_text() == "untouched"


@contextmanager
def run_process(order: FeedOrder) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "herringbone.s3.pipes.feed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.stdin.close()
            assert process.wait(10) == 0


def test_the_process_ends_with_its_input_whatever_the_readers_do(data: Path) -> None:
    # One that nobody opens, one whose reader does not read.
    os.mkfifo(data / "other_0")
    idle = pipe(data, {"a": LONG})
    order = FeedOrder(pipes=(idle, msgspec.structs.replace(idle, channel="other")))
    with run_process(order), (data / "other_0").open("rb", buffering=0) as fifo:
        assert fifo.read(1) == b"x"
    for each in ("training", "other"):
        renew_fifos(msgspec.structs.replace(idle, channel=each), keep=False)
    assert os.listdir(data) == []


def test_data_that_cannot_be_read_is_no_end_of_the_epoch(data: Path) -> None:
    broken = pipe(data, {"a.gz": b"plain text"}, gzip=True)
    with run_process(FeedOrder(pipes=(broken,))) as process:
        assert process.stdout is not None
        fifo = os.open(data / "training_0", os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert b"not in the form of gzip" in process.stdout.readline()
            time.sleep(0.05)
            # No byte, and no end-of-file either: a writer has the FIFO open.
            with pytest.raises(BlockingIOError):
                os.read(fifo, 10)
        finally:
            os.close(fifo)
