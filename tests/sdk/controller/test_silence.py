"""The steps of a host's silence, on a clock of the test's own."""

from herringbone.controller.silence import Silence, Step


def heard(at=100.0, every=5.0):
    silence = Silence()
    silence.hear(at, every)
    return silence


def test_a_silent_host_is_noticed_woken_and_given_up():
    silence = heard()
    steps = [(at, silence.take(at), silence.seconds) for at in (114.9, 115.0, 129.0, 130.0, 160.0, 1000.0)]
    assert [step for step in steps if step[1] is not None] == [
        (115.0, Step.NOTICE, 15.0),
        (130.0, Step.WAKE, 30.0),
        (160.0, Step.GIVE_UP, 60.0),
    ]
    assert silence.due == float("inf")


def test_any_output_begins_the_silence_anew():
    silence = heard()
    assert silence.take(115.0) is Step.NOTICE
    # Once: whoever has read of the silence reads of its end.
    assert [silence.hear(116.0, 5.0), silence.hear(117.0, 5.0)] == [True, False]
    assert silence.due == 132.0


def test_a_host_without_heartbeats_is_not_watched():
    """A program of a foreign image, or a supervisor of an earlier release."""
    silence = heard(every=0.0)
    assert (silence.due, silence.take(10**9)) == (float("inf"), None)


def test_a_controller_that_stood_still_itself_blames_nobody():
    """The machine slept, or was overloaded: nothing was read meanwhile."""
    silence = heard()
    assert (silence.take(3600.0), silence.due) == (None, 3615.0)
