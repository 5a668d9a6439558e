"""Pages of a log: from its end, in any block size, through filters, and while it grows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from herringbone.views.page.log_pages import Choice, later_lines, newest_lines, shown_text


def line(number, rank=0, text=""):
    return f"2026-11-21T11:44:{number // 100:02}.{number % 100 * 10000:06}Z [algo-1:{rank}] {text}n{number}\n".encode()


def names(page):
    return [one["text"].split()[-1] for one in page["lines"]]


@pytest.mark.parametrize("block", [7, 64, 1000])
@pytest.mark.parametrize("partial", [b"", b"not complete"])
def test_all_lines_come_once_and_in_order(tmp_path, block, partial):
    noise = random.Random(block)
    for count in (0, 1, 23, 60):
        path = tmp_path / f"{count}.log"
        path.write_bytes(b"".join(line(at, at % 2, "x" * noise.randint(0, 90) + " ") for at in range(count)) + partial)
        found, before = [], None
        while True:
            chosen = {"before": before, "count": 5, "over": False, "scan": 300, "block": block}
            page = newest_lines({"algo-1": path}, Choice(rank=1), **chosen)
            found = names(page) + found
            if not page["more"]:
                break
            assert page["before"] != before
            before = page["before"]
        assert found == [f"n{at}" for at in range(count) if at % 2]


def test_hosts_are_merged_by_time(tmp_path):
    files = {host: tmp_path / host for host in ("algo-1", "algo-2")}
    files["algo-1"].write_bytes(b"".join(line(at) for at in range(0, 20, 2)))
    files["algo-2"].write_bytes(b"".join(line(at) for at in (15, 17, 19)))
    page = newest_lines(files, Choice(), count=4)
    older = newest_lines(files, Choice(), before=page["before"], count=100)
    assert names(older) + names(page) == [f"n{at}" for at in (0, 2, 4, 6, 8, 10, 12, 14, 15, 16, 17, 18, 19)]
    assert not older["more"]


def bytes_read():
    """Return the bytes that this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().splitlines()[0].removeprefix("rchar: "))


def test_a_huge_log_is_not_read_whole(tmp_path):
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.write(line(1))
        # A hole: a gigabyte that takes no space.
        file.seek(1 << 30)
        file.write(b"\n" + b"".join(line(at) for at in range(100)))
    before = bytes_read()
    assert names(newest_lines({"algo-1": path}, Choice(), count=50))[-1] == "n99"
    assert bytes_read() - before <= 1 << 19
    page = newest_lines({"algo-1": path}, Choice(text="nowhere"), scan=1 << 21)
    assert page["lines"] == []
    assert page["more"]
    assert bytes_read() - before <= 1 << 23


def test_new_lines_come_when_they_are_complete(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(line(1) + line(2)[:-1])
    page = newest_lines({"algo-1": path}, Choice(), over=False)
    assert names(page) == ["n1"]
    later = later_lines({"algo-1": path}, Choice(), after=page["after"])
    assert names(later) == []
    with path.open("ab") as file:
        file.write(b"\n" + line(3, 1))
    later = later_lines({"algo-1": path}, Choice(), after=later["after"])
    assert names(later) == ["n2", "n3"]
    assert names(later_lines({"algo-1": path}, Choice(rank=1), after=page["after"])) == ["n3"]
    assert later_lines({"algo-1": path}, Choice(), after=later["after"])["lines"] == []


def test_a_log_that_grows_too_fast_is_skipped_in_part(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(line(at % 1000) for at in range(5000)))
    later = later_lines({"algo-1": path}, Choice(), after={"algo-1": 0}, scan=10_000)
    assert later["skipped"]
    assert 0 < len(later["lines"]) < 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1b[2J\x1b(Bclear\x1bc", "clear"),
        ("a\rb\x00c", "a\\rb\\x00c"),
        ("\x1b]0;never ends", ""),
        ("<b>&amp;", "<b>&amp;"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_escapes_are_not_shown(text, shown):
    assert shown_text(text) == shown


def test_long_lines_are_cut():
    assert len(shown_text("x" * 10**6)) < 5000
