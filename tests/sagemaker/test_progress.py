"""Show the progress of an upload on a pipe and on a terminal."""

import io

from herringbone.system.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def upload(stream):
    clock = Clock()
    with Progress(stream, clock=clock).uploading("[code]", 30_000_000) as count:
        for _ in range(3):
            clock.now += 20.0
            count(10_000_000)
    return stream.getvalue()


def test_a_pipe_receives_few_lines():
    assert upload(io.StringIO()).splitlines() == ["uploading 30.0 MB of [code]", "uploading [code]: 20.0 MB of 30.0 MB"]


def test_a_terminal_shows_a_bar_that_fills(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    last = upload(Terminal()).rpartition("\x1b[2K")[2].splitlines()[0]
    assert last.startswith("uploading [code] ━━━")
    assert "30.0/30.0 MB" in last


def work(stream, *seconds):
    clock = Clock()
    with Progress(stream, clock=clock).working("measuring [one] step") as show:
        for more in (4.3, *seconds):
            clock.now += more
            show("phase [forward]")
    return stream.getvalue()


def test_work_shows_its_place_on_a_terminal_and_its_time_at_the_end(monkeypatch):
    assert work(io.StringIO(), 20, 20, 20).splitlines() == [
        "measuring [one] step ...",
        "measuring [one] step, 44 s: phase [forward]",
        "measuring [one] step: 64.3 s",
    ]
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = work(Terminal())
    assert shown.splitlines()[-1].endswith("measuring [one] step: 4.3 s")
    assert "measuring [one] step, 4 s: phase [forward]" in shown
