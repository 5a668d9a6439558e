"""Records that nothing can make again are the old or the new ones after a power failure at any moment.

The list of these records is in `herringbone_contract.files`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.power_cut import PowerCut
from tests.sdk.tuner.test_runner import make_store

from herringbone.backends.ssh.agent.store import FileStore
from herringbone.controller.record import FileRecord, read_report
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.s3.front.store import Store
from herringbone.s3.front.uploads import Uploads
from herringbone.serve.records import RecordFolder, ServiceRecord
from herringbone.serve.signing.keys import KeyFile
from herringbone.tuner.store import TuningState, TuningStore
from herringbone.tuner.strategies.choose import strategy_for


class Record:
    """A record: `write` writes version 0, 1 or 2 of it below a folder, `read` returns the version that is there."""

    def write(self, folder: Path, version: int) -> None:
        raise NotImplementedError

    def read(self, folder: Path) -> Any:
        raise NotImplementedError


class Keys(Record):
    def write(self, folder: Path, version: int) -> None:
        KeyFile(folder / "keys.json").add(f"user-{version}")

    def read(self, folder: Path) -> int:
        return len(KeyFile(folder / "keys.json").all()) - 1


class ServiceRecords(Record):
    def write(self, folder: Path, version: int) -> None:
        records = RecordFolder(folder)
        if not version:
            records.add(ServiceRecord(name="a", owner="ada", region="", created=0.0, request={}))
        records.change("a", problem="x" * version)

    def read(self, folder: Path) -> int:
        return len(RecordFolder(folder).all()[0].problem)


class SearchState(Record):
    def write(self, folder: Path, version: int) -> None:
        TuningStore(folder).set_state(TuningState(reason="x" * version))

    def read(self, folder: Path) -> int:
        return len(TuningStore(folder).state().reason or "")


class Trials(Record):
    def write(self, folder: Path, version: int) -> None:
        if not version:
            make_store(folder / "search")
        store = TuningStore(folder / "search")
        proposals = strategy_for(store.record().definition).propose([], 4)
        store.add_proposal(proposals[version], f"a-{version}")

    def read(self, folder: Path) -> int:
        return len(TuningStore(folder / "search").trials()) - 1


class JobEnd(Record):
    def write(self, folder: Path, version: int) -> None:
        FileRecord(folder / "report.json").finish(version=version)

    def read(self, folder: Path) -> int:
        return int(read_report(folder / "report.json")["version"])


class Objects(Record):
    content = b"a" * 5000

    def write(self, folder: Path, version: int) -> None:
        store = Store(folder)
        if not version:
            store.create_bucket("bucket")
        with store.new_file("bucket") as file:
            file.write(self.content * (version + 1))
            store.keep(file, "bucket", "key", f"{version:032}", {"version": str(version)})

    def read(self, folder: Path) -> int:
        file, facts = Store(folder).open("bucket", "key")
        with file:
            content = file.read()
        version = len(content) // len(self.content) - 1
        assert content == self.content * (version + 1)
        # Of a new object that was not acknowledged yet, the facts may be missing; they never belong to another one.
        assert facts.meta in ({}, {"version": str(version)})
        return version


class Code(Record):
    """Packed code has one version: it is there whole, or not at all."""

    def write(self, folder: Path, version: int) -> None:
        store = FileStore(Home(folder))
        store.prepare([])
        store.add_code(str(version), b"code" * 2000)

    def read(self, folder: Path) -> int:
        store = FileStore(Home(folder))
        versions = [version for version in range(3) if store.has_code(str(version))]
        for version in versions:
            assert (folder / "code" / f"{version}.tar.gz").read_bytes() == b"code" * 2000
        return versions[-1]


@pytest.mark.parametrize("record", [Keys(), ServiceRecords(), SearchState(), Trials(), JobEnd(), Objects(), Code()])
def test_a_record_is_old_or_new(tmp_path, record):
    (folder := tmp_path / "folder").mkdir()
    record.write(folder, 0)
    record.write(folder, 1)
    with PowerCut(folder) as cut:
        record.write(folder, 2)
    assert read_after(cut, record, tmp_path / "left") == ({1, 2}, {2})


def read_after(cut: PowerCut, record: Record, left: Path) -> tuple[set[int], set[int]]:
    during, after = set(), set()
    for folder, over in cut.folders(left):
        (after if over else during).add(record.read(folder))
    return during, after


def test_the_first_trial_is_there(tmp_path):
    """The name of a new file is lost as easily as its content."""
    store = make_store(tmp_path / "folder")
    with PowerCut(store.path) as cut:
        store.add_proposal(strategy_for(store.record().definition).propose([], 1)[0], "a-0")
    after = {len(TuningStore(folder).trials()) for folder, over in cut.folders(tmp_path / "left") if over}
    assert after == {1}


def test_an_acknowledged_object_has_its_metadata(tmp_path):
    record, folder = Objects(), tmp_path / "folder"
    record.write(folder, 0)
    with PowerCut(folder) as cut:
        record.write(folder, 1)
    for left, over in cut.folders(tmp_path / "left"):
        (facts,) = (json.loads(path.read_bytes()) for path in left.glob("bucket/.herringbone/facts/*/*.json"))
        assert facts["meta"] in ([{"version": "1"}] if over else [{"version": "0"}, {"version": "1"}])
        # The old object may still have the name.
        assert facts["meta"] == {"version": "0"} or facts["before"]["meta"] == {"version": "0"}


def test_a_part_of_an_upload_has_its_content(tmp_path):
    store = Store(tmp_path / "folder")
    store.create_bucket("bucket")
    uploads = Uploads(store)
    upload = uploads.create("bucket", "key", {})
    with PowerCut(tmp_path / "folder") as cut, store.new_file("bucket") as file:
        file.write(b"a" * 5000)
        uploads.add("bucket", "key", upload, 1, file, "0" * 32)
    for folder, over in cut.folders(tmp_path / "left"):
        parts = Uploads(Store(folder)).parts("bucket", "key", upload)
        assert [part.size for part in parts] == [5000] or (not parts and not over)
        assert all(part.path.read_bytes() == b"a" * 5000 for part in parts)


def test_the_index_of_jobs_has_old_or_new_rows(tmp_path):
    """SQLite syncs by itself. Its last change may be lost, and no change is lost in part."""
    (folder := tmp_path / "folder").mkdir()
    index = JobIndex(folder / "index.sqlite")
    for number in range(60):
        index.add(JobRecord(name=f"a-{number}", backend="local", plan="x" * 600, created=1.0, status="old"))
    # The changed row grows beyond its page, so that one change writes several.
    imports = "from pathlib import Path; from herringbone.records.index import JobIndex"
    before = f"{imports}; i = JobIndex(Path({str(index.path)!r}))"
    watched = "i.update('a-0', status='new', facts='y' * 9000); i.remove('a-59')"
    cut = PowerCut.of_program(folder, tmp_path / "shim.so", before, watched)
    found: dict[bool, set[tuple[str, int]]] = {False: set(), True: set()}
    for left, over in cut.folders(tmp_path / "left"):
        rows = {row.name: row for row in JobIndex(left / "index.sqlite").all()}
        assert rows["a-0"].facts == (None if rows["a-0"].status == "old" else "y" * 9000)
        found[over].add((rows["a-0"].status, len(rows)))
    assert found[False] == {("old", 60), ("new", 60), ("new", 59)}
    assert found[True] == {("new", 60), ("new", 59)}
