"""benchmarks/scaling/simulated.md and its figure match the output of benchmarks/scaling/run.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.scaling.models import bert_large, resnet_50
from benchmarks.scaling.plot import draw
from benchmarks.scaling.run import (
    HOSTS,
    efficiencies,
    explaining_jitter,
    explanation,
    host_link,
    panel,
    scenarios,
    table,
)

PAGES = Path(__file__).resolve().parents[4] / "benchmarks" / "scaling"


def test_the_page_and_the_figure_match_the_script() -> None:
    page = (PAGES / "simulated.md").read_text()
    panels = []
    for title, speed, work in scenarios():
        rows = {hosts: efficiencies(work, hosts, host_link()) for hosts in HOSTS}
        assert "\n".join([f"### {title}", "", *table(rows)]) in page
        assert explanation(work, speed, rows) in page
        panels.append(panel(title, work, speed, rows))
    assert draw(panels) == (PAGES / "scaling.svg").read_text()


def test_models_have_the_gradients_of_the_publications() -> None:
    bert, resnet = bert_large(), resnet_50()
    # 334 and 25.6 million parameters, in fp16; normalisation's running statistics count as well.
    assert bert.gradient_bytes == pytest.approx(2 * 334e6, rel=0.01)
    assert resnet.gradient_bytes == pytest.approx(2 * 25.6e6, rel=0.01)
    for work in (bert, resnet):
        ready = [one.ready_s for one in work.gradients]
        assert ready == sorted(ready)
        assert ready[-1] == pytest.approx(work.backward_s)
    # The embedding is tied to the head and used first, so its gradient is final last.
    assert max(bert.gradients, key=lambda one: one.size).ready_s == pytest.approx(bert.backward_s)


def test_a_step_waits_for_the_slowest_of_many() -> None:
    """The largest of 2,048 normal deviates is expected at 3.44."""
    assert explaining_jitter(1.0, 1 / (1 + 0.01 * 3.44), 2048) == pytest.approx(0.01, rel=0.01)
