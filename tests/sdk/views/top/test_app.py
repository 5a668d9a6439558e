"""The screens of `herringbone top`, driven by Textual's Pilot on the sizes of a small and of a large terminal."""

import asyncio
import html
import re
import time

import pytest
from tests.sdk.views.top.made import HOSTILE, training

from herringbone.show.cells import num_columns
from herringbone.views.top.app import DetailScreen, StopScreen, TopApp
from herringbone.views.top.detail import Detail
from herringbone.views.top.monitor import Monitor
from herringbone.views.top.rows import Row
from herringbone_contract.errors import InputError


def text_of(app):
    """Return all that is on the screen, row by row."""
    rows = {}
    for y, part in re.findall(r'<text [^>]*? y="([\d.]+)"[^>]*>(.*?)</text>', app.export_screenshot()):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(part).replace("\xa0", " ")
    return "\n".join(rows[y] for y in sorted(rows))


def drive(app, steps, size=(80, 24)):
    async def run():
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


async def until(pilot, met):
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        await pilot.pause(0.01)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_list_the_details_and_the_filter(make_job, size):
    make_job("bert-2026-11-22-12-29-26-475", training(gpus=True), ["epoch 1", "loss 0.5 [b]"], created=3.0)
    make_job("hostile-1", training(), [HOSTILE], created=2.0)
    make_job("digits-1", training(500), ["done"], status="Completed", created=1.0)
    monitor = Monitor()
    monitor.refresh()
    assert monitor.wait(30.0)
    app = TopApp(monitor)

    async def steps(pilot):
        screen = text_of(app)
        bert, hostile, digits = screen.splitlines()[2:5]
        assert re.match(r"bert-20.*Training +━╌╌╌╌╌╌╌  24 % +(1 h|59 min).* 0.5 +4", bert)
        assert re.match(r"digits-1 +Completed +━━━━━━━━ 100 % +- +0.5", digits)
        assert max(map(num_columns, screen.splitlines())) <= size[0]
        assert (r"\x1b[2J" in hostile) == ("LAST LINE" in screen) == (size[0] == 200)
        # The last line of the chosen job has a row of its own.
        assert screen.splitlines()[-2].strip() == "loss 0.5 [b]"
        await pilot.press("down")
        await pilot.pause()
        assert text_of(app).splitlines()[-2].startswith(r"[bold red]x[/] \x1b[2J\x1b]0;title\x07 \u202eevil\u2066 a")
        await pilot.press("slash", *"dig", "enter")
        await pilot.pause()
        assert "bert" not in text_of(app)
        await pilot.press("escape", "home", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        await until(pilot, lambda: monitor.reader("bert-2026-11-22-12-29-26-475").detail is not None)
        app.update_rows()
        await pilot.pause()
        detail = text_of(app)
        assert re.search(r"Training on local_process.*120 of 500 steps +ETA", detail)
        assert re.search(r"loss +0.5 +█▃▁ +120 +huggingface", detail)
        assert re.search(r"algo-1 +3.25 +11.5 GiB +88 % 57.0 GiB", detail)
        assert "[algo-1:0] loss 0.5 [b]" in detail
        await pilot.press("escape")
        await pilot.pause()
        assert "digits-1" in text_of(app)
        await pilot.press("ctrl+c")

    drive(app, steps, size)
    assert app.return_code == 0


class Jobs:
    """Two jobs that count the requests to stop them."""

    trouble = ""

    def __init__(self, error=None):
        self.error, self.stopped = error, []
        self.detail = None

    def rows(self):
        return [self._row("b", True), self._row("a", False)]

    def _row(self, name, running):
        return Row(name=name, backend="local", state="Training", running=running, created=1.0)

    def reader(self, name):
        self.name, self.row = name, self._row(name, name == "b")
        return self

    def open_detail(self):
        self.detail = Detail(self.row, (), (), (), (), (HOSTILE,) * 300)

    def stop_job(self):
        self.stopped.append(self.name)
        if self.error is not None:
            raise self.error


def test_a_job_is_stopped_after_a_question_only():
    jobs = Jobs(InputError("[red]no[/]"))
    app = TopApp(jobs)

    async def steps(pilot):
        for answer in ("n", "escape", "enter", "q"):
            await pilot.press("s")
            assert isinstance(app.screen, StopScreen)
            await pilot.press(answer)
            await pilot.pause()
            assert not isinstance(app.screen, StopScreen)
        assert jobs.stopped == []
        await pilot.press("s", "y")
        # The app's own timer may take the message first.
        app.update_rows()
        await until(pilot, lambda: "job b was not stopped: [red]no[/]" in text_of(app))
        assert jobs.stopped == ["b"]
        # A job that is over is not asked about. In the details, `s` means their job.
        await pilot.press("down", "s")
        assert not isinstance(app.screen, StopScreen)
        await pilot.press("up", "enter", "s", "y")
        await until(pilot, lambda: jobs.stopped == ["b", "b"])
        assert isinstance(app.screen, DetailScreen)
        await pilot.press("q")

    drive(app, steps)
    assert app.return_code == 0


def test_no_text_is_read_as_markup():
    """Textual reads a `str` as markup, in which a link could quit the program or call any action."""
    shown = []

    class Watched(TopApp):
        def on_mount(self):
            super().on_mount()
            self.push_screen(DetailScreen(HOSTILE, jobs.reader("b")))

    jobs = Jobs()
    app = Watched(jobs, metric="[@click=app.quit]x[/]")

    async def steps(pilot):
        jobs.open_detail()
        app.update_rows()
        await pilot.pause()
        shown.append(text_of(app))

    drive(app, steps)
    assert r"[bold red]x[/] \x1b[2J" in shown[0]
