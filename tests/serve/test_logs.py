"""CloudWatch's reading operations over a log file."""

import pytest

from herringbone.serve.cloudwatch.logs import _backward, _events, _forward, _token, _words
from herringbone.serve.errors import ApiError

LINES = [f"2026-11-21T11:44:{second:02}.000000Z [algo-1:0] line {second}" for second in range(30)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "algo-1.log"
    hidden = "2026-11-21T11:44:30.000000Z [algo-1] \x1e{}"
    # Programs of an image, which print without our prefix, print empty lines, too.
    empty = "2026-11-21T11:44:30.000000Z "
    path.write_text("\n".join([*LINES, hidden, empty, "2026-11-21T11:44:31.000000Z [algo-1:0] half a li"]))
    return path


def every(_):
    return True


def test_reading_forward_ends_at_the_last_whole_line(log):
    events, begin, end = _forward(log, 0, 10_000, every)
    assert [event.text for event in events] == [f"[algo-1:0] line {number}" for number in range(30)]
    assert events[1].time - events[0].time == 1000
    assert _forward(log, end, 10_000, every)[0] == []
    with log.open("a") as file:
        file.write("ne\n")
    (event,), _, _ = _forward(log, end, 10_000, every)
    assert event.text == "[algo-1:0] half a line"
    assert begin == 0


def test_pages_forward_and_backward_hold_each_line_once(log):
    texts, offset = [], 0
    while page := _forward(log, offset, 7, every):
        events, _, offset = page
        texts += [event.text for event in events]
        if not events:
            break
    back, offset = [], log.stat().st_size
    while True:
        events, offset, _ = _backward(log, offset, 7, every)
        back = [event.text for event in events] + back
        if not events:
            break
    assert texts == back
    assert len(texts) == 30


def test_a_line_is_found_from_the_middle_of_another(log):
    first = next(event for event in _events(log, 5, middle=True) if not event.hidden)
    assert first.text == "[algo-1:0] line 1"


@pytest.mark.parametrize("token", ["", "f", "f/x", "g/1", "f/999999", f"f/{'9' * 30}"])
def test_tokens_that_nobody_was_given(token):
    with pytest.raises(ApiError):
        _token(token, from_head=True, size=10)


def test_patterns():
    assert _words('error "out of memory" x') == ["error", "out of memory", "x"]
    for pattern in ("{ $.a = 1 }", "[a, b]", "?a ?b", "-a", "%x%"):
        with pytest.raises(ApiError):
            _words(pattern)


def test_a_page_reads_a_bounded_part_of_a_log_without_matches(log):
    size = log.stat().st_size
    pages, offset = [], 0
    while True:
        events, begin, end = _forward(log, offset, 10_000, lambda event: "line 29" in event.text, scan=200)
        if end == begin:
            break
        assert end - begin < 200 + 60
        pages.append([event.text for event in events])
        offset = end
    assert sum(map(len, pages)) == 1
    assert len(pages) > 5
    # Also past the lines that are for programs.
    assert size - offset < 60
