"""Every source of metrics over SSH; see `tests.events.all_sources` for the table."""

from __future__ import annotations

import time

import pytest

from tests.events.all_sources import DEFINITIONS, SCRIPT, check_all_sources, shown_metrics

pytestmark = pytest.mark.ssh


def test_all_sources_while_the_job_runs_and_after_it(submit) -> None:
    """The job's log and events are read on its machine until its end, and then here."""
    job = submit(SCRIPT + "time.sleep(3)\n", hosts=1, metric_definitions=DEFINITIONS)
    deadline = time.monotonic() + 20
    while len(shown_metrics(job)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert job.status == "InProgress"
    follower = list(job.events(follow=True))
    check_all_sources(job.wait())
    # A reader that followed the job has read what is here now.
    assert sorted(map(repr, follower)) == sorted(map(repr, job.events()))
