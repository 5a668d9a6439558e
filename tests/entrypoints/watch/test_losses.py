"""A loss that is no number, and one that is a multiple of what it was."""

import pytest

from herringbone_entry.watch.losses import Losses


def taken(values, *, name="loss", factor=3.0, rank=0, step=1):
    losses = Losses(factor)
    found = [
        losses.take({"name": name, "rank": rank, "step": step + at, "by": None, "values": [value]})
        for at, value in enumerate(values)
    ]
    return [(one.fault, one.step) for one in found if one]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_found_once(value):
    assert taken([2.0, 1.5, value, value, 1.0]) == [("nan_loss", 3)]
    assert taken([value], name="eval/loss") == [("nan_loss", 1)]
    assert taken([value], name="Loss/train") == taken([value], name="loss (train)") == [("nan_loss", 1)]
    assert taken([value], name="grad_norm") == taken([value], name="loss_scale") == []


def test_three_high_values_in_a_row_are_a_spike():
    usual = [1.0 + 0.01 * (at % 5) for at in range(25)]
    assert taken([*usual, 9.0, 9.0, 9.0]) == [("loss_spike", 28)]
    # One bad batch, a curve that has just begun, an evaluation's loss, and no factor.
    assert taken([*usual, 9.0, 9.0, 1.0, 9.0, 9.0]) == taken([1.0] * 9 + [9.0] * 9) == []
    assert taken([*usual, 9.0, 9.0, 9.0], name="val_loss") == taken([*usual, 9.0, 9.0, 9.0], factor=None) == []


def test_a_loss_that_falls_or_is_negative_has_no_spikes():
    assert taken([100 * 0.9**at for at in range(100)]) == []
    assert taken([-5.0] * 30 + [5.0] * 9) == []


def test_the_words_say_what_it_was_before():
    losses = Losses(3.0)
    fault = losses.take({"name": "train/loss", "rank": 2, "step": 10, "by": 10, "values": [1.0] * 30 + [4.0] * 3})
    assert (fault.text, fault.rank) == ("train/loss is 4 at step 330, 4.0 times as much as the median before it, 1", 2)


@pytest.mark.parametrize(
    "event",
    [{}, {"name": 3, "values": [1]}, {"name": "loss", "values": "x"}, {"name": "loss", "values": [None, {}, "x"]}],
)
def test_what_a_script_sends_may_be_anything(event):
    assert Losses(3.0).take(event) is None


def bad_steps(*events, factor=3.0):
    losses = Losses(factor, begin=5.0)
    found = [losses.take({"name": "loss", "rank": 0, "by": 1, **event}) for event in events]
    return tuple(next(one.bad for one in found if one))


def test_the_steps_of_a_fault_begin_behind_the_last_good_loss():
    values = {"step": 7, "since": 100.0, "t": 103.0, "values": [2.0, 1.5, 1.4, "nan"]}
    assert bad_steps({**values, "pace": [0, 2]}) == (102.0, 9 + 1, 10 + 1, 2)
    # A script that counts from 1, and Hugging Face's Trainer, whose step is the number of steps made.
    assert bad_steps({**values, "pace": [1, 1]}) == (102.0, 9, 10, 1)
    assert bad_steps({**values, "source": "huggingface"}) == (102.0, 9, 10, 0)
    # Every tenth step is sent: the first bad one may be any since the last good one.
    assert bad_steps({**values, "by": 10, "pace": [0, 1]})[1:3] == (28, 38)
    # Nobody knows the optimizer's step, or there is none; and no loss was good.
    assert bad_steps(values) == bad_steps({**values, "step": None, "pace": [0, 1]}) == (102.0, None, None, 0)
    assert bad_steps({**values, "values": ["nan"], "pace": [0, 1]}) == (5.0, None, 8, 1)


def test_a_spike_begins_at_its_first_high_value():
    usual = {"step": 0, "t": 30.0, "values": [1.0] * 30, "pace": [0, 1]}
    spike = {"step": 30, "t": 33.0, "values": [9.0] * 3, "pace": [0, 1]}
    assert bad_steps(usual, spike) == (30.0, 30, 33, 1)


@pytest.mark.parametrize("pace", [3, "x", [1], [1, "2"], [True, 1], {}])
def test_a_pace_that_is_none_is_not_used(pace):
    assert bad_steps({"step": 1, "t": 3.0, "values": [1.0, "nan"], "pace": pace})[1:] == (None, None, 0)
