"""The end of a job on this machine, without any machine: who may end the packing, and when."""

import time

import pytest

from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.finish.completion import packing_is_ended
from herringbone.records.index import STOPPING, UPLOADING, JobIndex, JobRecord


@pytest.fixture
def index(home):
    home.make()
    index = JobIndex(home.index)
    index.add(
        JobRecord(
            name="a",
            backend="ssh",
            plan="{}",
            created=time.time(),
            secondary_status=UPLOADING,
            service='{"machines": {}}',
        )
    )
    return index


def test_the_second_request_to_stop_ends_the_packing_in_whichever_process_it_runs(home, index):
    backend = SshBackend(home, transport=None)
    backend.stop("a")
    row = index.get("a")
    assert (row.status, row.secondary_status, packing_is_ended(row)) == (STOPPING, UPLOADING, False)
    backend.stop("a")
    assert packing_is_ended(index.get("a"))


def test_a_kill_ends_the_packing(home, index):
    backend = SshBackend(home, transport=None, kill_seconds=0.0)
    # Nobody packs in this test, so the job stays as it is.
    backend.describe = index.get
    backend.kill("a")
    assert packing_is_ended(index.get("a"))
