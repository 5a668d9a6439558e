"""Jobs made by hand: rows of the index, files of events and logs."""

import json
import os
import time

import pytest

from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity, place
from herringbone_contract.events.format import encode


@pytest.fixture
def make_job(home):
    """Writes jobs as a controller does: `make_job(name, events, lines, status=...)`; this process runs them."""
    home.make()

    def make(name, events=(), lines=(), *, status="InProgress", secondary="Training", created=None):
        created = time.time() - 100 if created is None else created
        over = status != "InProgress"
        row = JobRecord(
            name=name,
            backend="local_process",
            plan=json.dumps({"hosts": [{"name": "algo-1"}], "hyperparameters": {}, "options": {}}),
            created=created,
            started=created,
            ended=created + 60 if over else None,
            status=status,
            secondary_status=status if over else secondary,
            controller=None if over else identity(os.getpid()),
            place=place(),
            hosts=1,
        )
        JobIndex(home.index).add(row)
        home.job(name).logs.mkdir(parents=True)
        append(name, events, lines)

    def append(name, events=(), lines=()):
        folder = home.job(name)
        with folder.events("algo-1").open("ab") as file:
            file.writelines(encode({"t": time.time(), "host": "algo-1", **event}) for event in events)
        with folder.log("algo-1").open("ab") as file:
            file.writelines(f"2026-11-21T12:00:00.000000Z [algo-1:0] {line}\n".encode() for line in lines)

    make.append = append
    return make
