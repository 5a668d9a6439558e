"""Output of ranks, byte for byte: pure cases first, then real ranks."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_entry.ranks.lines import MAX_LINE_BYTES, LineStream, Tail

P = b"[algo-1:0] "
LIVE = P + b"\r"


def stream() -> LineStream:
    return LineStream(P, Tail())


@given(st.binary().map(lambda data: data.replace(b"\r", b".")), st.lists(st.integers(1, 40), min_size=1))
def test_p14_bytes_survive_any_cutting(data: bytes, cuts: list[int]) -> None:
    lines, out, position = stream(), b"", 0
    while position < len(data):
        step = cuts[position % len(cuts)]
        out += lines.feed(data[position : position + step], 0.0)
        position += step
    out += lines.close()
    expected = data if data.endswith(b"\n") or not data else data + b"\n"
    assert out == b"".join(P + line + b"\n" for line in expected.split(b"\n")[:-1])


def test_p14_a_character_cut_by_a_read_stays_whole() -> None:
    lines = stream()
    euro = "€".encode()
    assert lines.feed(b"5 " + euro[:1], 0.0) == b""
    assert lines.feed(euro[1:] + b"\n", 0.0) == P + b"5 " + euro + b"\n"


def test_p14_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    tail, out = Tail(), []
    lines = LineStream(P, tail)
    for tenth in range(31):
        out += lines.feed(f"\r{tenth}/30".encode(), now=tenth / 10).split(b"\n")[:-1]
    out += lines.feed(b"\n", now=3.1).split(b"\n")[:-1]
    assert out == [LIVE + b"0/30", LIVE + b"10/30", LIVE + b"20/30", P + b"30/30"]
    assert tail.text() == ("30/30",)


def test_p14_a_bar_that_pauses_shows_its_state() -> None:
    lines = stream()
    assert lines.feed(b"\r1/2", now=0.0) == b""
    assert lines.bar
    assert lines.tick(now=1.0) == LIVE + b"1/2\n"
    assert lines.tick(now=2.0) == b""
    assert lines.feed(b"\n", now=3.0) == P + b"1/2\n"
    assert not lines.bar


def test_a_state_that_is_still_being_written_is_not_shown() -> None:
    lines = stream()
    lines.feed(b"\rloss=0.", now=0.0)
    lines.feed(b"2", now=0.99)
    assert lines.tick(now=1.0) == b""
    lines.feed(b"5", now=1.001)
    assert lines.tick(now=2.0) == LIVE + b"loss=0.25\n"


WIPED = b"\r" + b" " * 6 + b"\r"


@pytest.mark.parametrize("cut", range(len(WIPED) + 1))
def test_p14_a_bar_wiped_for_a_message_leaves_no_line_of_blanks(cut: int) -> None:
    # `tqdm.write` wipes the bar, prints, and draws the bar again.
    lines, out = stream(), []
    for now, text in enumerate([b"\r 10/30", WIPED[:cut], WIPED[cut:], b"saved\n", b"\r 11/30", b"\r 30/30", WIPED]):
        out += lines.feed(text, now=float(now)).split(b"\n")[:-1]
        out += lines.tick(now=now + 0.5).split(b"\n")[:-1]
    out += lines.close().split(b"\n")[:-1]
    assert out == [LIVE + b" 10/30", P + b"saved", LIVE + b" 11/30", LIVE + b" 30/30", P + b" 30/30"]


def test_p14_a_printed_line_of_blanks_is_kept_next_to_a_bar() -> None:
    assert stream().feed(b"\r1/2\r2/2\n   \n \r\nend\n", 0.0) == b"".join(
        P + line + b"\n" for line in (b"2/2", b"   ", b" \r", b"end")
    )


@pytest.mark.parametrize("cut", range(8))
def test_p14_windows_line_ends_are_no_progress_bar(cut: int) -> None:
    data, lines = b"a\r\nbc\r\n", stream()
    assert lines.feed(data[:cut], 0.0) + lines.feed(data[cut:], 0.0) + lines.close() == P + b"a\r\n" + P + b"bc\r\n"


def test_p15_a_program_without_newlines_does_not_fill_our_memory() -> None:
    lines, out = stream(), 0
    for _ in range(40):
        out += len(lines.feed(b"x" * 1_048_576, 0.0))
    out += len(lines.close())
    cuts = 40 * 1_048_576 // (MAX_LINE_BYTES + 1_048_576) + 1
    assert out == 40 * 1_048_576 + cuts * (len(P) + 1)


def test_p15_two_hundred_thousand_lines_a_second() -> None:
    chunk = b"ValueError: a line of some sixty characters, as logs have them\n" * 4_000
    lines, began = stream(), time.perf_counter()
    for _ in range(100):
        lines.feed(chunk, 0.0)
    assert 400_000 / (time.perf_counter() - began) > 200_000


SCRIPT = r"""
    import os, sys
    print("a", 1, "b")
    print("    indented\ttext  ")
    sys.stdout.flush()
    for piece in ("sp", "lit ", "€"):
        os.write(1, piece.encode()[:1]); os.write(1, piece.encode()[1:])
    print()
    print("x" * 1_000_000)
    print("to stderr", file=sys.stderr)
    sys.stdout.flush()
    os.write(1, b"\xff\xfe not utf-8\n")
    os.write(1, b"no newline at the end")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("launcher", ["plain", "openmpi5", "mpich"])
def test_p14_a_ranks_bytes_arrive_as_they_were(make_job, mpirun, launcher: str, unbuffered: str) -> None:
    job = make_job(PYTHONUNBUFFERED=unbuffered)
    if launcher != "plain":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
    job.write(SCRIPT, **({} if launcher == "plain" else {"sagemaker_mpi_enabled": True}))
    ended = job.run()["algo-1"]
    expected = [
        b"a 1 b",
        b"    indented\ttext  ",
        "split €".encode(),
        b"x" * 1_000_000,
        b"to stderr",
        b"\xff\xfe not utf-8",
        b"no newline at the end",
    ]
    lines = ended.output.split(b"\n")[:-1]
    # Two pipes: the order between them is free.
    assert sorted(lines) == sorted(P + line for line in expected)
    assert [line for line in lines if b"stderr" not in line] == [P + line for line in expected if b"stderr" not in line]


def test_p15_a_million_lines_of_a_real_rank(make_job) -> None:
    job = make_job()
    job.write(
        """
        import sys
        block = "ValueError: a line of some sixty characters, as logs have them\\n" * 1000
        for _ in range(1000): sys.stdout.write(block)
        sys.stdout.flush()
        import os
        status = open(f"/proc/{os.getppid()}/status").read() if sys.platform == "linux" else "VmHWM: 0 kB"
        print(next(line for line in status.splitlines() if line.startswith("VmHWM")))
        """
    )
    began = time.monotonic()
    ended = job.run()["algo-1"]
    assert ended.output.count(b"\n") == 1_000_001
    assert 1_000_000 / (time.monotonic() - began) > 200_000
    assert int(ended.lines[-1].split()[-2]) < 64 * 1024


def test_a_reader_that_pauses_does_not_make_a_host_look_frozen(make_job) -> None:
    # A blocking write to a full pipe stopped the loop, and with it the heartbeat.
    job = make_job(hosts=2, HERRINGBONE_HEARTBEAT="0.3")
    job.write(
        "for _ in range(30_000): print('y' * 1000)\nimport time; time.sleep(3)",
        sagemaker_torch_distributed_enabled=True,
    )
    job.start()
    time.sleep(2.5)
    ended = job.wait()
    assert [result.code for result in ended.values()] == [0, 0]
    assert [len(result.rank_lines) for result in ended.values()] == [30_000, 30_000]
