"""Ranks that call `should_stop` at their own rates all get True at the same of their calls; files only, no job."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from herringbone_contract.events import stop_file, stops
from herringbone_contract.events.stop_file import ASKED, MOST_RANKS, chosen, exchange
from herringbone_contract.events.stops import Asking


@pytest.fixture
def path(tmp_path):
    stop_file.make(str(tmp_path / "events.stop"), ranks=2)
    return str(tmp_path / "events.stop")


@pytest.fixture
def word(path):
    """The supervisor's side of the file."""
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def agree(path: str) -> int:
    """Do what supervisors and coordinator do at a notice."""
    call = chosen([exchange(path, ASKED)])
    exchange(path, call)
    return call


def test_ranks_with_different_numbers_of_calls_stop_at_the_same_call(path, word):
    ranks = [Asking(path, rank) for rank in (0, 1)]
    assert not any(ranks[rank].ask() for rank in (0, 0, 0, 0, 1))
    assert agree(path) == 5
    assert [ranks[0].ask(), *(ranks[1].ask() for _ in range(4))] == [True, False, False, False, True]
    # From then on, and in a rank that has come late.
    assert ranks[0].ask()
    assert ranks[1].ask()
    assert [Asking(path, 1).ask(), Asking(path, 7).ask()] == [False, False]


def test_a_rank_waits_in_its_next_call_until_the_supervisors_have_agreed(path, word):
    rank, answers = Asking(path, 0), []
    assert not rank.ask()
    stop_file.write(word, ASKED)
    waiting = threading.Thread(target=lambda: answers.append(rank.ask()))
    waiting.start()
    while exchange(path) < 2:
        pass
    assert waiting.is_alive()
    assert not answers
    stop_file.write(word, 3)
    waiting.join()
    assert answers == [False]
    assert rank.ask()


@pytest.mark.parametrize("schedule", range(50))
def test_whenever_the_notice_comes_no_rank_has_made_the_call_before(path, word, schedule):
    """Two ranks call as fast as they can, in threads; the notice comes somewhere."""
    heard: list[list[bool]] = [[], []]

    def run(number: int) -> None:
        rank = Asking(path, number)
        while not (heard[number] and heard[number][-1]):
            heard[number].append(rank.ask())

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    while len(heard[0]) < 1 + schedule:
        pass
    call = agree(path)
    for thread in threads:
        thread.join()
    assert [len(calls) for calls in heard] == [call, call]


def test_a_rank_that_asks_no_more_is_not_waited_for_and_one_that_is_told_is(path, word):
    rank = Asking(path, 0)
    rank.ask()
    rank.end()
    assert agree(path) == 0
    rank.ask()
    assert agree(path) > 0


def test_a_forked_child_neither_counts_nor_waits(path, word):
    rank = Asking(path, 0)
    rank.ask()
    stop_file.write(word, ASKED)
    rank._pid = -1
    assert not rank.ask()
    assert exchange(path) == 1


@pytest.mark.parametrize("rank", [None, MOST_RANKS, 1 << 40])
def test_outside_a_job_and_for_a_rank_that_no_job_has_the_answer_is_false(rank, tmp_path):
    assert not Asking(None, rank).ask()
    assert not Asking(str(tmp_path / "none"), rank).ask()
    Asking(None, rank).end()


def test_a_library_asks_only_for_scripts_that_do_not_handle_sigterm(monkeypatch):
    monkeypatch.setattr(stops, "_asking", Asking(None, 0))
    assert stops.asks_for_script()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not stops.asks_for_script()
        stops.stop_when_asked(pytest.fail)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_on_slurm_a_rank_outlives_the_sigterm_to_its_step_while_supervisors_agree(path, word, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = signal.getsignal(signal.SIGTERM)
    try:
        rank = Asking(path, 0)
        monkeypatch.setattr(stops, "_asking", rank)
        assert stops.asks_for_script()
        stop_file.write(word, 9)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not rank.ask()
    finally:
        signal.signal(signal.SIGTERM, before)
