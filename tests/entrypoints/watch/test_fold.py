"""Ranks at the same place are folded, and the rank that the others wait for comes first."""

import pytest

from herringbone_entry.watch.fold import Place, cut_pairs, fold, own_line, place_of, ranks_text

CODE = "/opt/ml/code"
TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = [f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce", ""]
OUTER = [f"{CODE}/train.py", 30, "<module>", "step()"]


def process(*frames, state="S", wchan=""):
    return {"pid": 1, "state": state, "wchan": wchan, "threads": [{"name": "", "frames": list(frames)}]}


def place(line, *, waits=False, state=""):
    return Place((line, state), (line,), state, waits)


REDUCES = place_of([process(ALL_REDUCE, [f"{CODE}/train.py", 12, "step", "dist.all_reduce(x)"], OUTER)], CODE)
LOCKED = place_of([process([f"{CODE}/lib/io.py", 7, "save", "LOCK.acquire()"], OUTER)], CODE)
STOPPED = place_of([process(state="T")], CODE)


def test_a_place_has_the_users_lines_and_the_librarys_innermost_call():
    assert REDUCES.frames == (
        "…/torch/distributed/distributed_c10d.py:3252 in all_reduce",
        "train.py:12 in step: dist.all_reduce(x)",
        "train.py:30 in <module>: step()",
    )
    assert (REDUCES.waits, LOCKED.waits) == (True, False)
    assert own_line(REDUCES) == "train.py:12 in step: dist.all_reduce(x)"
    assert own_line(LOCKED) == "lib/io.py:7 in save: LOCK.acquire()"


def test_ranks_in_different_lines_of_a_library_are_at_the_same_place():
    other = [ALL_REDUCE[0], 3248, "all_reduce", ""]
    again = place_of([process(other, [f"{CODE}/train.py", 12, "step", "dist.all_reduce(x)"], OUTER)], CODE)
    assert again.key == REDUCES.key


def test_a_script_named_as_it_was_started_is_the_users():
    assert place_of([process(["train.py", 3, "main", ""])], CODE).frames == ("train.py:3 in main",)


def test_a_rank_that_waits_for_its_data_loader_is_where_the_worker_is():
    loader = [f"{TORCH}/utils/data/dataloader.py", 1284, "_try_get_data", ""]
    worker = process([f"{CODE}/data.py", 9, "__getitem__", "LOCK.acquire()"], [loader[0], 50, "_worker_loop", ""])
    found = place_of([process(loader, [f"{CODE}/train.py", 8, "main", "for x in loader:"]), worker], CODE)
    assert own_line(found) == "data.py:9 in __getitem__: LOCK.acquire() (data loader's worker)"


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ([], "ended"),
        ([process(state="Z")], "ended"),
        ([process(state="T")], "stopped by a signal"),
        ([process(state="D", wchan="nfs_wait")], "waiting in the kernel (nfs_wait)"),
    ],
)
def test_a_process_that_cannot_answer_is_described_by_its_state(facts, state):
    assert place_of(facts, CODE).state == state


@pytest.mark.parametrize(
    ("places", "odd", "reason"),
    [
        ({0: REDUCES, 1: LOCKED, 2: REDUCES}, (1,), "the others wait in a collective operation"),
        ({0: REDUCES, 1: LOCKED}, (1,), "the others wait in a collective operation"),
        ({0: REDUCES, 1: STOPPED, 2: LOCKED}, (1,), "it does not run"),
        ({0: REDUCES, 1: place("", state="ended"), 2: REDUCES}, (1,), "it has ended"),
        ({0: place("a"), 1: place("b"), 2: place("a")}, (1,), "the others are somewhere else"),
        # Most ranks compute, and one waits for them already: nothing is wrong with any of the many.
        ({0: place("a"), 1: REDUCES, 2: place("a")}, (1,), "the others are somewhere else"),
        ({0: place("a"), 1: place("b")}, (), ""),
        ({0: REDUCES, 1: REDUCES}, (), ""),
        ({0: LOCKED}, (), ""),
    ],
)
def test_the_odd_rank_comes_first(places, odd, reason):
    first = fold(places)[0]
    assert (first.ranks if first.odd else (), first.odd) == (odd, reason)


def test_a_flight_record_and_a_cut_connection_tell_more_than_the_stacks():
    same = dict.fromkeys(range(3), REDUCES)
    assert fold(same, missing={2: "it is late"})[0].ranks == (2,)
    address = {0: "0100007F:0001", 1: "0100007F:0002", 2: "0100007F:0003"}
    connections = {
        0: [[address[0], address[1], True]],
        1: [[address[1], address[0], False], [address[1], address[2], True]],
        2: [[address[2], address[1], False], [address[2], "08080808:0050", True]],
    }
    assert cut_pairs(connections) == {(0, 1), (1, 2)}
    [odd, others] = fold(same, cut_pairs(connections))
    assert (odd.ranks, odd.odd) == ((1,), "no data passes between it and the others")
    assert others.ranks == (0, 2)


def test_ranks_are_written_in_runs():
    assert ranks_text(range(1000)) == "ranks 0-999"
    assert ranks_text([3, 1, 2, 9]) == "ranks 1-3, 9"


def test_a_rank_that_imports_a_library_does_not_wait_for_others():
    imports = [f"{TORCH}/distributed/__init__.py", 12, "<module>", ""]
    assert not place_of([process(imports, [f"{CODE}/train.py", 1, "<module>", "import torch"])], CODE).waits
