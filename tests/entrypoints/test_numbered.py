"""Numbered lines of a pod's log, and their copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone_entry.numbered import Copy, Numbering, pass_on


def passed(chunks: list[bytes], copy: Copy, piece_bytes: int = 100) -> bytes:
    """Return what is printed of chunks that come one by one."""
    (read, write), (out_read, out_write) = os.pipe(), os.pipe()
    for chunk in chunks:
        os.write(write, chunk)
    os.close(write)
    pass_on(read, out_write, copy, Numbering(piece_bytes))
    os.close(out_write)
    with os.fdopen(out_read, "rb") as output:
        os.close(read)
        return output.read()


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4), (2, 5, 9), tuple(range(1, 12))])
def test_lines_are_numbered_however_they_arrive(cuts):
    text = b"one\ntwo\n\nend"
    numbering = Numbering()
    pieces = [text[start:end] for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]
    lines = [line for piece in pieces for line in numbering.feed(piece)] + list(numbering.close())
    assert lines == [b"1 one\n", b"2 two\n", b"3 \n", b"4 end\n"]


@pytest.mark.parametrize("text", [b"abcdefgh\nij\n", b"abcdefgh"])
def test_a_long_line_becomes_pieces_that_say_so(text):
    numbering = Numbering(piece_bytes=3)
    lines = [*numbering.feed(text), *numbering.close()]
    assert lines[:3] == [b"1+abc\n", b"2+def\n", b"3 gh\n"]


def test_the_copy_has_the_printed_lines_with_their_times(tmp_path: Path):
    path = tmp_path / "log" / "pod.log"
    printed = passed([b"[algo-1:0] a\n[algo-1:0] b\n"], Copy(path))
    assert printed == b"1 [algo-1:0] a\n2 [algo-1:0] b\n"
    stamps, lines = zip(*(line.split(b" ", 1) for line in path.read_bytes().splitlines(keepends=True)), strict=True)
    assert b"".join(lines) == printed
    assert all(len(stamp) == len("2026-11-30T17:00:00.123456Z") and stamp.endswith(b"Z") for stamp in stamps)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_copy_ends_at_its_limit_and_the_output_goes_on(tmp_path: Path):
    path = tmp_path / "pod.log"
    printed = passed([b"a\n" * 3], Copy(path, limit=10))
    assert printed.splitlines()[:3] == [b"1 a", b"2 a", b"3 a"]
    assert b"4 herringbone: this log's copy" in printed
    assert b"limit of 10 bytes" in printed
    assert path.read_bytes() == b""


def test_a_link_in_the_place_of_the_copy_is_not_followed(tmp_path: Path):
    (tmp_path / "pod.log").symlink_to(tmp_path / "elsewhere")
    printed = passed([b"a\n"], Copy(tmp_path / "pod.log"))
    assert printed.startswith(b"1 a\n2 herringbone: this log's copy")
    assert not (tmp_path / "elsewhere").exists()


def test_the_program(tmp_path: Path):
    words = (sys.executable, "-m", "herringbone_entry.numbered", str(tmp_path / "pod.log"))
    assert subprocess.run(words, input=b"a\nb\n", capture_output=True, check=True).stdout == b"1 a\n2 b\n"
