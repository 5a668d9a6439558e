"""The sync of a checkpoint whose files are on several machines: nobody finds a manifest before all of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from herringbone.aws.session import AwsSession
from herringbone.s3.bucket import Buckets
from herringbone.s3.sync import CheckpointSync
from herringbone_contract.checkpoint.manifest import File, Manifest, to_json


def save(machine: Path, rank: int, save: str, ranks: int = 2) -> None:
    """Write what one machine has of a checkpoint: the file of its rank, and the manifest of all ranks."""
    folder = machine / "epoch-1"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"rank-0000{number}.safetensors" for number in range(ranks)]
    (folder / names[rank]).write_text(save)
    files = {name: File(len(save), 0, 0, number, f"algo-{number + 1}") for number, name in enumerate(names)}
    manifest = Manifest(save, "epoch-1", 0.0, "2.13", ranks, {}, files, {})
    (folder / "manifest.json").write_bytes(to_json(manifest))
    (machine / "newest").write_text("epoch-1\n")


@pytest.fixture
def syncs(tmp_path: Path, s3: Any) -> list[CheckpointSync]:
    machines = [tmp_path / "a", tmp_path / "b"]
    for machine in machines:
        machine.mkdir()
    return [CheckpointSync(each, "s3://mine/c", Buckets(AwsSession.of(None)), several=True) for each in machines]


def content(s3: Any) -> dict[str, str]:
    listing = s3.list_objects_v2(Bucket="mine").get("Contents", ())
    return {
        entry["Key"].removeprefix("c/").removeprefix("epoch-1/"): s3.get_object(Bucket="mine", Key=entry["Key"])["Body"]
        .read()
        .decode()
        for entry in listing
    }


def test_the_last_machine_sends_the_manifest(tmp_path: Path, s3: Any, syncs: list[CheckpointSync]) -> None:
    first, second = syncs
    save(tmp_path / "a", 0, "one")
    first.step(over=True)
    assert list(content(s3)) == ["rank-00000.safetensors"]
    save(tmp_path / "b", 1, "one")
    second.step(over=True)
    assert list(content(s3)) == ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors", "newest"]
    first.step(over=True)
    # The same tag again: as long as one machine has the old file, there is no manifest.
    save(tmp_path / "a", 0, "two")
    first.step(over=True)
    now = content(s3)
    assert "manifest.json" not in now
    assert (now["rank-00000.safetensors"], now["rank-00001.safetensors"]) == ("two", "one")
    save(tmp_path / "b", 1, "two")
    second.step(over=True)
    assert '"two"' in content(s3)["manifest.json"]
    # A machine that looks again finds nothing left to send, except what it held back.
    assert first.step(over=True) <= 2
    assert '"two"' in content(s3)["manifest.json"]
    assert first.step(over=True) == second.step(over=True) == 0


def test_the_bucket_follows_the_removals_of_the_job(tmp_path: Path, s3: Any, syncs: list[CheckpointSync]) -> None:
    folder = tmp_path / "a"
    sync = CheckpointSync(folder, "s3://mine/c", Buckets(AwsSession.of(None)), job="job")
    for step in (1, 2):
        (folder / f"step-{step}.pt").write_text("x")
    sync.step(over=True)
    for step in (1, 2):
        (folder / f"step-{step}.pt").unlink()
    (folder / "step-3.pt").write_text("x")
    # The script has removed the first one itself, and another job's ledger says nothing of this one's.
    (folder / ".keep-job-algo-1.json").write_text('{"removed": {"step-2.pt": ["step-3.pt"]}}')
    (folder / ".keep-job-2-algo-1.json").write_text('{"removed": {"step-1.pt": ["step-3.pt"]}}')
    sync.step(over=False)
    assert list(content(s3)) == ["step-1.pt", "step-2.pt"]
    sync.step(over=False)
    assert list(content(s3)) == ["step-1.pt", "step-3.pt"]
