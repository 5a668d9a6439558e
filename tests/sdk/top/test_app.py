"""The screens of `herringbone top`, driven by Textual's Pilot on the sizes of a small and a large terminal."""

import asyncio
import html
import os
import re
import time

import pytest

from herringbone.top.app import DetailScreen, StopScreen, TopApp
from herringbone.top.monitor import Monitor
from herringbone.top.texts import num_columns
from tests.sdk.top.made import HOSTILE, training

SIZES = [(80, 24), (200, 50)]


def text_of(app):
    """Return all that is on the screen, row by row."""
    rows = {}
    for y, part in re.findall(r'<text [^>]*? y="([\d.]+)"[^>]*>(.*?)</text>', app.export_screenshot()):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(part).replace("\xa0", " ")
    return "\n".join(rows[y] for y in sorted(rows))


def drive(app, size, steps):
    async def run():
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(pilot)
            if out := os.environ.get("SHOTS"): __import__("pathlib").Path(f"{out}/{size[0]}.svg").write_text(app.export_screenshot())

    asyncio.run(run())


@pytest.fixture
def monitor(make_job):
    make_job("bert-2026-11-22-12-29-26-475", training(gpus=True), ["epoch 1", "loss 0.5 [b]"])
    make_job("hostile-1", training(loss=float("0.25")), [HOSTILE])
    make_job("digits-1", training(500), ["done"], status="Completed", created=1.0)
    monitor = Monitor()
    monitor.refresh()
    assert monitor.wait(5.0)
    return monitor


@pytest.mark.parametrize("size", SIZES)
def test_list_detail_and_filter(monitor, size):
    app = TopApp(monitor)

    async def steps(pilot):
        screen = text_of(app)
        print(screen)
        assert "bert-20" in screen
        assert "24 %" in screen
        assert re.search(r"(1 h|59 min)", screen)
        assert "Completed" in screen
        assert "\x1b" not in screen
        assert (size[0] > 100) == ("LAST LINE" in screen)
        assert max(map(num_columns, screen.splitlines())) <= size[0]
        await pilot.press("slash", *"dig", "enter")
        await pilot.pause()
        assert "bert" not in text_of(app)
        await pilot.press("escape")
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert isinstance(app.screen, DetailScreen)
        app.update_rows()
        await pilot.pause()
        detail = text_of(app)
        print(detail)
        assert "huggingface" in detail
        assert "algo-1:0" in detail
        await pilot.press("escape")
        await pilot.pause()

    drive(app, size, steps)
