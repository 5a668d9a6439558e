"""Feed pages to `Streams` without any request; check the order of streams and lines, and that no line repeats."""

import random
from datetime import datetime, timezone

from herringbone.backends.sagemaker.logs import Streams, host_of, lines_of
from herringbone.system.polling import Pace

PACE = Pace(2, 10, 2)


def entry(host, start=1763719200, **members):
    return {"logStreamName": f"digits-1/{host}-{start}", **members}


def event(ms, text, host="algo-1", rank=0):
    return {"timestamp": ms, "message": f"[{host}:{rank}] {text}"}


def names(streams, now):
    return [stream.host for stream in streams.due(now)]


def take(streams):
    return [line.text for line in streams.take()]


def test_a_streams_name_gives_the_host_and_a_lines_prefix_the_rank():
    assert [host_of(name) for name in ("a/algo-1-176371", "a/algo-2-176371", "a/algo-12", "a/else")] == [
        "algo-1",
        "algo-2",
        "algo-12",
        "else",
    ]
    (prefixed,) = lines_of({"timestamp": 1_500, "message": "[algo-2:3]   loss 0.5\n"}, "algo-2")
    assert (prefixed.host, prefixed.rank, prefixed.text) == ("algo-2", 3, "  loss 0.5")
    assert prefixed.time == datetime.fromtimestamp(1.5, timezone.utc)
    foreign = lines_of({"timestamp": 0, "message": "Traceback\n  File"}, "algo-2")
    assert [(line.host, line.rank, line.text) for line in foreign] == [
        ("algo-2", None, "Traceback"),
        ("algo-2", None, "  File"),
    ]


def test_a_page_with_a_new_token_is_followed_by_another_even_when_it_is_empty():
    streams = Streams(PACE)
    streams.update([entry("algo-1")], now=0)
    (stream,) = streams.due(0)
    streams.add_page(stream, [], "f/1", now=0)
    assert names(streams, 0) == ["algo-1"]
    streams.add_page(stream, [event(1, "a")], "f/2", now=0)
    streams.add_page(stream, [], "f/2", now=0)
    assert names(streams, 1.9) == []
    assert take(streams) == ["a"]


def test_a_page_that_ends_with_a_fresh_event_is_the_last_for_now():
    streams = Streams(PACE)
    streams.update([entry("algo-1")], now=0)
    (stream,) = streams.due(0)
    fresh = {**event(9_000, "a"), "ingestionTime": 9_000}
    streams.add_page(stream, [fresh], "f/1", now=0, served=60.0)
    assert not stream.drained
    streams.add_page(stream, [fresh] * 1_000, "f/2", now=0, served=10.0)
    assert not stream.drained
    streams.add_page(stream, [fresh], "f/3", now=0, served=10.0)
    assert stream.drained
    assert (names(streams, 1.9), names(streams, 2)) == ([], ["algo-1"])


def test_pauses_of_a_quiet_stream_grow_until_it_is_listed_as_grown():
    streams = Streams(PACE)
    streams.update([entry("algo-1", lastIngestionTime=5)], now=0)
    (stream,) = streams.due(0)
    now, pauses = 0.0, []
    streams.add_page(stream, [], "f/1", now=now)
    for _ in range(4):
        streams.add_page(stream, [], "f/1", now=now)
        pauses.append(stream.due - now)
        now = stream.due
    assert pauses == [2, 4, 8, 10]
    streams.add_page(stream, [], "f/1", now=now)
    streams.update([entry("algo-1", lastIngestionTime=5)], now=now + 1)
    assert names(streams, now + 1) == []
    streams.update([entry("algo-1", lastIngestionTime=6)], now=now + 1)
    assert names(streams, now + 1) == ["algo-1"]


def test_many_quiet_streams_share_five_requests_a_second():
    streams = Streams(PACE)
    streams.update([entry(f"algo-{number}") for number in range(1, 201)], now=0)
    for _ in range(8):
        for stream in streams.due(1e9):
            streams.add_page(stream, [], "f/1", now=0)
    assert {stream.due for stream in streams.due(1e9)} == {40.0}


def test_a_stream_with_more_pages_holds_back_later_lines():
    streams = Streams(PACE)
    streams.update([entry("algo-1"), entry("algo-2")], now=0)
    first, second = streams.due(0)
    streams.add_page(first, [event(10, "a"), event(30, "c")], "f/1", now=0)
    streams.add_page(first, [], "f/1", now=0)
    assert take(streams) == []  # the second stream has not been read yet
    streams.add_page(second, [event(20, "b", "algo-2")], "f/1", now=0)
    assert take(streams) == ["a", "b"]
    streams.add_page(second, [event(25, "b2", "algo-2"), event(40, "d", "algo-2")], "f/2", now=0)
    streams.add_page(second, [], "f/2", now=0)
    assert take(streams) == ["b2", "c", "d"]


def test_a_forgotten_token_neither_loses_nor_repeats_a_line():
    streams = Streams(PACE)
    streams.update([entry("algo-1")], now=0)
    (stream,) = streams.due(0)
    streams.add_page(stream, [event(1, "a"), event(2, "b"), event(2, "c")], "f/1", now=0)
    streams.add_page(stream, [], "f/1", now=0)
    assert take(streams) == ["a", "b", "c"]
    streams.restart(stream)
    assert (stream.token, stream.last_ms) == (None, 2)
    # A request that starts at the last timestamp returns the two lines of that time again.
    streams.add_page(stream, [event(2, "b"), event(2, "c"), event(2, "d"), event(3, "e")], "f/9", now=0)
    streams.add_page(stream, [], "f/9", now=0)
    assert take(streams) == ["d", "e"]


def test_sixty_streams_with_uneven_pages_are_merged_completely_and_in_order():
    generator = random.Random(7)
    hosts = [f"algo-{number}" for number in range(1, 61)]
    written = {host: [] for host in hosts}
    for ms in range(10_000):
        host = generator.choice(hosts)
        written[host].append(event(ms, str(ms), host))
    streams, received = Streams(PACE), []
    streams.update([entry(host) for host in hosts], now=0)
    while due := streams.due(0):
        stream = generator.choice(due)
        size = generator.randrange(1, 40)
        page, written[stream.host] = written[stream.host][:size], written[stream.host][size:]
        streams.add_page(stream, page, f"f/{len(written[stream.host])}", now=1)
        received += streams.take()
    assert [int(line.text) for line in received] == list(range(10_000))
