"""The timeline of one step in a thousand: its spans fit into events, and the predicted bubble is the schedule's."""

from __future__ import annotations

import json

import pytest

from herringbone_contract.events import emit
from herringbone_parallel import live_timeline
from herringbone_parallel.live_timeline import LiveTimeline, predicted_bubble, timeline_events


def test_many_spans_come_as_several_events_of_one_origin() -> None:
    spans = [("backward", number, 3, 1000.123456 + number, 1000.623456 + number) for number in range(200)]
    events = timeline_events(1000, spans, 1.7e9, 0.25)
    assert [len(event["spans"]) for event in events] == [80, 80, 40]
    assert {event["since"] for event in events} == {1.7e9 + 1000.123456}
    assert events[0]["spans"][1] == ["backward", 1, 3, 1.0, 1.5]
    assert all(event["predicted"] == {"bubble": 0.25} for event in events)
    assert all(len(json.dumps(event, separators=(",", ":"))) < emit.MAX_LINE_BYTES - 100 for event in events)
    assert timeline_events(1000, [], 1.7e9, None) == []


@pytest.mark.parametrize(
    ("pipeline", "partitions", "count", "expected"),
    # (p - 1) / (m + p - 1), the bubble of GPipe and of 1F1B.
    [("simple", 2, 4, 1 / 5), ("interleaved", 4, 8, 3 / 11), ("interleaved", 1, 4, 0.0)],
)
def test_the_predicted_bubble(pipeline: str, partitions: int, count: int, expected: float) -> None:
    spans = [
        (phase, microbatch, 0, 0.0, seconds)
        for microbatch in range(count)
        for phase, seconds in (("forward", 1.0), ("backward", 2.0))
    ]
    bubble = predicted_bubble(spans, pipeline=pipeline, active=count, partitions=partitions)
    assert bubble == pytest.approx(expected, abs=1e-3)
    assert predicted_bubble([], pipeline=pipeline, active=count, partitions=partitions) is None
    assert predicted_bubble(spans, pipeline=pipeline, active=count, partitions=100_000) is None


def test_only_the_tenth_and_each_thousandth_step_is_recorded(heard, monkeypatch) -> None:
    with monkeypatch.context() as outside:
        outside.delenv(emit.VARIABLE)
        assert LiveTimeline.of_step(10, 0) is None
    assert [step for step in range(1, 3001) if LiveTimeline.of_step(step, 0)] == [10, 1000, 2000, 3000]
    live = LiveTimeline.of_step(10, 1)
    assert live is not None
    live.note("forward", 0, 1.0, 1.5)
    live.send(pipeline="interleaved", active=4, partitions=2)
    [event] = heard()
    assert (event["step"], event["spans"]) == (10, [["forward", 0, 1, 0.0, 0.5]])
    # The first partition alone predicts.
    assert "predicted" not in event


def test_replicas_of_a_stage_are_compared_by_their_own_time_and_others_by_when_they_come(monkeypatch):
    now, count = [100.0], [7]
    monkeypatch.setattr(live_timeline.time, "time", lambda: now[0])
    monkeypatch.setattr(live_timeline, "count", lambda: count[0])
    live_timeline.entered.clear()

    def work(step, replicas):
        stage = live_timeline.StageWork(step, 1, replicas)
        stage.note("forward", 0, 5.0, 5.25)
        stage.note("backward", 0, 6.0, 6.25)
        now[0] += 2.0
        stage.end()

    # It has waited for 1.5 s of each step, since the last optimizer step.
    work(1, 2)
    work(2, 2)
    count[0] += 1
    work(3, 2)
    work(4, 1)
    assert [(round(time / 1e9, 3), group, step) for time, group, step in live_timeline.entered] == [
        (100.5, "stage 1", 1),
        (101.0, "stage 1", 2),
        (104.5, "stage 1", 3),
        (106.0, "pipeline", 4),
    ]
    live_timeline.entered.clear()
