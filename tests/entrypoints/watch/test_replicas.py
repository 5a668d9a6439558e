"""Checksums of replicas: the one that differs from the majority is named."""

from herringbone_entry.watch.replicas import Mismatch, Replicas


def taken(first, *steps):
    replicas, found = Replicas(range(len(first))), []
    for number, values in enumerate([first, *steps], 1):
        for rank, value in enumerate(values):
            found += replicas.take(rank, number, value)
    return replicas, found


def test_the_minority_is_named_once():
    _, found = taken("1111", "2222", "3343", "5565", "7777")
    assert found == [Mismatch(3, (2,), (0, 1, 3))]


def test_of_two_both_are_named():
    _, found = taken("11", "23")
    assert found == [Mismatch(2, (0, 1), ())]


def test_ranks_with_other_parts_of_a_model_are_compared_with_their_own_replicas():
    replicas, found = taken("1212", "3434", "5657", "8989")
    assert found == [Mismatch(3, (1, 3), ())]
    assert not replicas.alone
    replicas, found = taken("123", "456")
    assert (replicas.alone, found) == (True, [])


def test_a_rank_that_is_behind_is_waited_for_and_others_are_none():
    replicas = Replicas([0, 1])
    assert replicas.take(0, 1, "1") == replicas.take(0, 2, "2") == replicas.take(7, 1, "9") == []
    assert replicas.take(1, 1, "1") == []
    assert replicas.take(1, 2, "3") == [Mismatch(2, (0, 1), ())]
    for step in range(3, 500):
        replicas.take(0, step, "5")
    assert replicas.take(1, 499, "6") == []
