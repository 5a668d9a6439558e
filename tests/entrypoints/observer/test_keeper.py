"""The observer removes checkpoints that `keep_checkpoints` does not keep, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herringbone_contract.checkpoint.manifest import Chunk, File, Manifest, Tensor, to_json
from herringbone_contract.events.format import Point
from herringbone_entry.observer.keeper import Keeper
from herringbone_entry.observer.settings import Settings

BEST = {"last": 1, "best": 1, "metric": "loss", "objective_type": "Minimize"}


def torch_file(path: Path, time: int) -> None:
    """Write a file as `torch.save` does: a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"state")
    os.utime(path, (time, time))


def trainer_folder(path: Path, time: int, **state: Any) -> None:
    """Write a folder as Hugging Face's Trainer does."""
    path.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"data")
    (path / "trainer_state.json").write_text(json.dumps(state))
    for entry in [*path.iterdir(), path]:
        os.utime(entry, (time, time))


def saved_folder(path: Path, time: int, *, hosts: tuple[str, ...] = ("algo-1",), here: str = "") -> None:
    """Write a checkpoint of our form, with a file of each host; or only that of the host `here`."""
    path.mkdir()
    files, chunks = {}, []
    for rank, host in enumerate(hosts):
        name, content = f"rank-{rank}.bin", bytes([rank] * 4)
        files[name] = File(4, 0, 0, rank, host)
        chunks.append(Chunk(name, 0, (4 * rank,), (4,), zlib.crc32(content)))
        if here in ("", host):
            (path / name).write_bytes(content)
    tensors = {"w": Tensor("U8", (4 * len(hosts),), tuple(chunks))}
    manifest = Manifest("save", path.name, 1.0, "2", len(hosts), {}, files, tensors)
    (path / "manifest.json").write_bytes(to_json(manifest))
    for entry in [*path.iterdir(), path]:
        os.utime(entry, (time, time))


class Job:
    """A keeper in a folder, one per host; two looks settle what was written before."""

    def __init__(self, folder: Path, keep: dict[str, Any], *, host: str = "algo-1", leads: bool = True) -> None:
        self.folder, self.complaints = folder, list[str]()
        settings = Settings(host, 1, checkpoints=str(folder), started=1.0, job="job", keep=keep, leads=leads)
        self.keeper = Keeper(settings, self.complaints.append)

    def look(self) -> list[dict[str, Any]]:
        """Look once, as at the end of the job: all is settled, and the removals are waited for."""
        return [event for event in self.keeper.last(1e12) if isinstance(event, dict) and event["kind"] == "removed"]

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith(".keep-"))


@pytest.mark.parametrize(
    ("write", "name"),
    [(torch_file, "step-{}.pt"), (trainer_folder, "checkpoint-{}"), (saved_folder, "any tag {}")],
)
def test_each_form_keeps_the_newest(tmp_path: Path, write: Callable[[Path, int], None], name: str) -> None:
    job = Job(tmp_path, {"last": 2})
    removed = []
    for step in (8, 9, 10, 11):
        write(tmp_path / name.format(step), step)
        removed += job.look()
    assert job.left() == sorted(name.format(step) for step in (10, 11))
    assert [(event["path"], event["successor"]) for event in removed] == [
        (name.format(8), name.format(10)),
        (name.format(9), name.format(11)),
    ]
    assert job.complaints == []


def test_files_of_one_step_are_one_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2):
        for name in (f"model-step-{step}.pt", f"optimizer-step-{step}.pt"):
            torch_file(tmp_path / name, step + 10)
            # Without the optimizer's file, which the first one has, the second one is not whole.
            removals = job.look()
    assert [event["path"] for event in removals] == ["model-step-1.pt, optimizer-step-1.pt"]
    assert job.left() == ["model-step-2.pt", "optimizer-step-2.pt"]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut"])
def test_a_torn_successor_removes_nothing(tmp_path: Path, damage: bytes) -> None:
    job = Job(tmp_path, {"last": 1})
    torch_file(tmp_path / "step-1.pt", 10)
    job.look()
    (tmp_path / "step-2.pt").write_bytes(damage)
    assert job.look() == []
    assert "step-2.pt is not whole" in job.complaints[0]
    # It was only slow.
    torch_file(tmp_path / "step-2.pt", 20)
    assert [event["path"] for event in job.look()] == ["step-1.pt"]


def test_one_flipped_bit_in_our_form_removes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    saved_folder(tmp_path / "a", 10)
    job.look()
    saved_folder(tmp_path / "b", 20)
    (tmp_path / "b" / "rank-0.bin").write_bytes(b"\0\0\0\1")
    assert job.look() == []
    assert job.left() == ["a", "b"]


def test_what_is_named_foreign_or_unknown_stays(tmp_path: Path) -> None:
    torch_file(tmp_path / "step-0.pt", 0)
    job = Job(tmp_path, {"last": 1})
    others = ["notes.txt", "rank0.pt", "model_1.pt"]
    for step in range(1, 5):
        torch_file(tmp_path / f"step-{step}.pt", 10 + step)
    for name in others:
        torch_file(tmp_path / name, 5)
    (tmp_path / "last.ckpt").symlink_to("step-1.pt")
    (tmp_path / "newest").write_text("step-2.pt\n")
    (tmp_path / "dcp").mkdir()
    job.look()
    names = ["step-0.pt", "step-1.pt", "step-2.pt", "step-4.pt", "last.ckpt", "newest", "dcp", *others]
    assert job.left() == sorted(names)
    assert len(job.complaints) == 1


def test_the_best_checkpoint_of_a_trainer_stays(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2, 3):
        trainer_folder(
            tmp_path / f"checkpoint-{step}", step + 1, best_model_checkpoint="/opt/ml/checkpoints/checkpoint-1"
        )
        job.look()
    assert job.left() == ["checkpoint-1", "checkpoint-3"]


def test_the_best_by_the_metric_before_the_save_stays_over_attempts(tmp_path: Path) -> None:
    job = Job(tmp_path, BEST)
    values = {1: 0.5, 2: 0.25, 3: 0.75}
    for step, value in values.items():
        # A file has the time of the kernel's last tick.
        job.keeper.heard([Point(10.0 * step + 0.005, "loss", value), Point(10.0 * step, "other", 0.0)])
        torch_file(tmp_path / f"step-{step}.pt", 10 * step)
        job.look()
    assert job.left() == ["step-2.pt", "step-3.pt"]
    # The next attempt knows the values of the first one from the ledger.
    job = Job(tmp_path, BEST)
    job.keeper.heard([Point(40.0, "loss", 0.3)])
    torch_file(tmp_path / "step-4.pt", 41)
    events = [(event["kind"], event["path"]) for event in job.keeper.last(1e12)]
    assert events == [("checkpoint", "step-4.pt"), ("removed", "step-3.pt")]


def test_copies_of_all_hosts_folders_keep_order_and_values(tmp_path: Path) -> None:
    """As a retry over SSH: each host's folder has the files of all, and folders get the time of the copy."""
    hosts = ("algo-1", "algo-2")
    (tmp_path / "merged").mkdir()
    for host in hosts:
        (tmp_path / host).mkdir()
        job = Job(tmp_path / host, BEST, host=host, leads=host == "algo-1")
        for step in (9, 10):
            job.keeper.heard([Point(step - 0.5, "loss", float(step))])
            saved_folder(tmp_path / host / f"s{step}", step, hosts=hosts, here=host)
            job.look()
        for file in [*(tmp_path / host).glob("s*/*"), *(tmp_path / host).glob(".keep*")]:
            target = tmp_path / "merged" / file.relative_to(tmp_path / host)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(file, target)
    job = Job(tmp_path / "merged", BEST)
    saved_folder(tmp_path / "merged" / "s11", 11, hosts=hosts)
    job.look()
    assert job.left() == ["s11", "s9"]


def test_the_value_of_its_step_counts_also_after_the_save(tmp_path: Path) -> None:
    job = Job(tmp_path, BEST)
    for step, value in ((1, 0.5), (2, 0.25), (3, 0.75)):
        torch_file(tmp_path / f"step-{step}.pt", 10 * step)
        job.keeper.heard([Point(10.0 * step + 5, "loss", value, step)])
        job.look()
    torch_file(tmp_path / "step-4.pt", 40)
    job.look()
    assert job.left() == ["step-2.pt", "step-4.pt"]


def test_what_cannot_be_removed_is_named_and_keeps_nobody_else(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    # Hidden, its name is longer than the file system allows.
    names = [f"{'a' * 240}-step-1.pt", "step-2.pt", "step-3.pt"]
    for step, name in enumerate(names, 10):
        torch_file(tmp_path / name, step)
    job.look()
    assert job.left() == sorted([names[0], names[2]])
    assert "cannot be removed: File name too long" in job.complaints[0]


@pytest.mark.parametrize("state", ["[", "[]", "[" * 100_000, '{"best_model_checkpoint": 3}'])
def test_a_damaged_state_of_a_trainer_is_harmless(tmp_path: Path, state: str) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2):
        trainer_folder(tmp_path / f"checkpoint-{step}", step + 1)
        (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(state)
    torch_file(tmp_path / "step-3.pt", 9)
    torch_file(tmp_path / "step-4.pt", 10)
    job.look()
    assert "step-3.pt" not in job.left()
    assert len(job.left()) == (1 if state[0] == "{" else 3)


def test_a_metric_that_is_never_logged_removes_nothing_and_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, BEST)
    for step in (1, 2, 3):
        torch_file(tmp_path / f"step-{step}.pt", 10 * step)
        assert job.look() == []
    assert job.complaints == ["keep_checkpoints: no value of 'loss' was logged so far, so nothing is removed"]


def test_an_attempt_that_was_killed_before_it_looked_wrote_its_checkpoints(tmp_path: Path) -> None:
    torch_file(tmp_path / "step-0.pt", 0)
    Job(tmp_path, {"last": 1})
    torch_file(tmp_path / "step-1.pt", 10)
    job = Job(tmp_path, {"last": 1})
    torch_file(tmp_path / "step-2.pt", 20)
    job.look()
    assert job.left() == ["step-0.pt", "step-2.pt"]


def test_a_removal_that_was_killed_is_finished(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2):
        trainer_folder(tmp_path / f"checkpoint-{step}", step + 1)
        job.look()
    # As after a kill between the rename and the removal.
    trainer_folder(tmp_path / ".checkpoint-1.removed", 1)
    trainer_folder(tmp_path / ".other.removed", 1)
    job = Job(tmp_path, {"last": 2})
    trainer_folder(tmp_path / "checkpoint-3", 4)
    job.look()
    assert job.left() == [".other.removed", "checkpoint-2", "checkpoint-3"]


def test_a_checkpoint_that_is_written_anew_before_its_removal_stays(tmp_path: Path, monkeypatch) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2):
        torch_file(tmp_path / f"step-{step}.pt", step + 1)
    verify = job.keeper._verify

    def verify_slowly(*arguments: Any) -> None:
        verify(*arguments)
        torch_file(tmp_path / "step-1.pt", 9)

    monkeypatch.setattr(job.keeper, "_verify", verify_slowly)
    assert job.look() == []
    assert job.left() == ["step-1.pt", "step-2.pt"]


def test_a_script_that_prunes_by_itself_is_no_error(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1})
    for step in (1, 2, 3):
        torch_file(tmp_path / f"step-{step}.pt", 10 * step)
        (tmp_path / f"step-{step - 1}.pt").unlink(missing_ok=True)
        assert job.look() == []
    assert (job.left(), job.complaints) == (["step-3.pt"], [])


@pytest.mark.parametrize("shared", [False, True])
def test_other_hosts_remove_what_the_first_one_names(tmp_path: Path, shared: bool) -> None:
    hosts = ("algo-1", "algo-2")
    folders = [tmp_path / ("shared" if shared else host) for host in hosts]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    jobs = [
        Job(folder, {"last": 1}, host=host, leads=host == "algo-1") for folder, host in zip(folders, hosts, strict=True)
    ]
    for step in (1, 2):
        for folder, host in zip(folders, hosts, strict=True):
            if not (folder / f"s{step}").exists():
                saved_folder(folder / f"s{step}", step + 10, hosts=hosts, here="" if shared else host)
        orders = jobs[0].look()
        for order in orders:
            jobs[1].keeper.obey(order)
        assert len(jobs[1].look()) == len(orders) * (not shared)
    assert [job.left() for job in jobs] == [["s2"], ["s2"]]


def test_an_order_without_a_newer_whole_checkpoint_here_is_not_obeyed(tmp_path: Path) -> None:
    job = Job(tmp_path, {"last": 1}, host="algo-2", leads=False)
    saved_folder(tmp_path / "s1", 30)
    job.keeper.obey({"unit": "s1", "after": "s2"})
    assert job.look() == []
    # Written anew after its successor: a run that went back.
    saved_folder(tmp_path / "s2", 20)
    assert job.look() == []
    assert job.left() == ["s1", "s2"]
