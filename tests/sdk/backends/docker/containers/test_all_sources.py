"""Every source of metrics in a container; see `tests.events.all_sources` for the table."""

from __future__ import annotations

import pytest
from tests.events.all_sources import DEFINITIONS, SCRIPT, check_all_sources

pytestmark = pytest.mark.docker


def test_all_sources(submit) -> None:
    check_all_sources(submit(SCRIPT, metric_definitions=DEFINITIONS).wait())
