"""Every source of metrics on `local_process`; see `tests.events.all_sources` for the table."""

from __future__ import annotations

from tests.events.all_sources import DEFINITIONS, SCRIPT, check_all_sources

from herringbone import Estimator


def test_all_sources(home, script) -> None:
    script(SCRIPT)
    check_all_sources(Estimator("train.py", instance_type="local_process", metric_definitions=DEFINITIONS).fit())
