"""How long a job has held its hosts, by its events."""

import pytest

from herringbone.records.job_events import JobEvents, held_seconds


def written(path, *states):
    for state, at in states:
        JobEvents(path).state(state, at=at)
    return path


@pytest.mark.parametrize(
    ("states", "now", "held"),
    [
        ((("Starting", 0.0), ("Training", 10.0), ("Stopping", 50.0), ("Stopped", 60.0)), None, 50.0),
        ((("Training", 10.0), ("Uploading", 50.0), ("Completed", 9_060.0)), 9_999.0, 40.0),
        # The time between two attempts is nobody's; a day in Slurm's queue costs nothing.
        ((("Training", 10.0), ("Restarting", 50.0), ("Training", 9_000.0), ("Failed", 9_010.0)), None, 50.0),
        # A job that runs, and one of which nobody knows.
        ((("Training", 10.0),), 40.0, 30.0),
        ((("Training", 10.0),), None, 0.0),
        ((("Pending", 10.0), ("Starting", 20.0)), 99.0, 0.0),
        # Clocks of two machines.
        ((("Training", 10.0), ("Failed", 5.0)), None, 0.0),
    ],
)
def test_only_the_time_with_hosts_counts(tmp_path, states, now, held):
    assert held_seconds(written(tmp_path / "job.events", *states), now) == held


def test_a_missing_or_damaged_file_is_no_time(tmp_path):
    assert held_seconds(tmp_path / "none", 5.0) == 0.0
    path = written(tmp_path / "job.events", ("Training", 10.0))
    path.write_bytes(path.read_bytes() + b'{"kind":"state","t":"x","state":3}\n{"state"\n')
    assert held_seconds(path, 20.0) == 10.0
