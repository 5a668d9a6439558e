"""A checkpoint is complete or absent: after a kill, an error of one rank, or with files that are not its own."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from herringbone_contract.checkpoint.manifest import parse
from herringbone_contract.checkpoint.verification import listing, read_manifest, verify
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint import api as checkpoint
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import Piece
from herringbone_parallel.torch.checkpoint.reading import find
from herringbone_parallel.torch.model_parallel.checkpoint.folder import CheckpointFolder
from herringbone_parallel.torch.model_parallel.checkpoint.save_load import write_whole
from tests.parallel.torch.checkpoint import thread_ranks
from tests.parallel.torch.processes import PROCESSES
from tests.power_cut import PowerCut

KILLS = 6
ROWS = 1 << 10


def state_at(step: int, rank: int) -> dict[str, Any]:
    """Return rank 0's or rank 1's half of a state in which every value tells the step."""
    half = torch.full((ROWS // 2, 64), float(step))
    return {"model": {"weight": Piece(half, (rank * ROWS // 2, 0), (ROWS, 64)), f"own-{rank}": torch.tensor(step)}}


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    def save(step: int) -> None:
        state = {"model": {"weight": torch.full((8,), float(step))}, "step": step}
        checkpoint.save(folder, f"step-{step}", state, peers=Peers.alone())

    folder, left = tmp_path / "checkpoints", tmp_path / "left"
    save(0)
    with PowerCut(folder) as cut:
        save(1)
    during, after = set(), set()
    for found, over in cut.folders(left, tries=4):
        tag = (found / "newest").read_text().strip()
        assert not verify(found / tag)
        (after if over else during).add(tag)
    assert (during, after) == ({"step-0", "step-1"}, {"step-1"})


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_file_of_smp_save(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    write_whole(folder / "part.pt", {"step": 0})
    with PowerCut(folder) as cut:
        write_whole(folder / "part.pt", {"step": 1})
    steps = {(torch.load(left / "part.pt")["step"], over) for left, over in cut.folders(tmp_path / "left", tries=20)}
    assert steps == {(0, False), (1, False), (1, True)}


def save_until_killed(folder: str, connection: Any) -> None:
    def save(peers: Peers) -> None:
        for step in range(10_000):
            write = checkpoint.async_save if step % 2 else checkpoint.save
            # Two of three saves replace the one before under the same tag.
            write(folder, f"step-{step // 3}", state_at(step, peers.rank), peers=peers)
            if step == 0 and peers.rank == 0:
                connection.send("begun")

    thread_ranks.run(2, save)


def test_no_resume_reads_a_torn_checkpoint_after_kills_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(21)
    unfinished = 0
    for _ in range(KILLS):
        folder = tmp_path / "checkpoints"
        connection, worker_connection = PROCESSES.Pipe()
        process = PROCESSES.Process(target=save_until_killed, args=(str(folder), worker_connection), daemon=True)
        process.start()
        assert connection.poll(30)
        time.sleep(moments.uniform(0.0, 0.06))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        unfinished += any(entry.problem and entry.problem.startswith("unfinished") for entry in listing(folder))
        path = find(folder)
        assert verify(path) == []
        model = checkpoint.read_plain(path)["model"]
        assert model["weight"].unique().tolist() == [float(model["own-0"])] == [float(model["own-1"])]
        # The folder stays: the next job continues in it, and removes what this one left.
    assert unfinished, "no kill has met a save; choose other moments"


def invert(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 255
    path.write_bytes(content)


def claim_another_type(path: Path) -> None:
    """Change the header, but not the save that it names."""
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"'))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")

    def save(peers: Peers) -> None:
        for step in (1, 2):
            checkpoint.save(folder, f"step-{step}", state_at(step, peers.rank), peers=peers)

    thread_ranks.run(2, save)
    return folder


DAMAGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "missing": (lambda path: (path / "rank-00001.safetensors").unlink(), "missing", "rank 1 on .* is missing; bring"),
    # A script may leave one, and to open it would wait for ever.
    "fifo": (
        lambda path: ((path / "rank-00001.safetensors").unlink(), os.mkfifo(path / "rank-00001.safetensors")),
        "damaged",
        "rank 1 on .* cannot be read: it is no regular file",
    ),
    "torn": (lambda path: os.truncate(path / "rank-00000.safetensors", 9_000), "torn", "has 9000 of [0-9]+ bytes"),
    "foreign": (
        lambda path: shutil.copy(path.parent / "step-1/rank-00001.safetensors", path),
        "foreign",
        "00001.safetensors .rank 1 on .* is foreign: it is of the save",
    ),
    "other": (lambda path: shutil.copy(__file__, path / "rank-9.safetensors"), "foreign", "the manifest has no such"),
    "header": (lambda path: invert(path / "rank-00000.safetensors", 100), "foreign", "is foreign"),
    "type": (
        lambda path: claim_another_type(path / "rank-00001.safetensors"),
        "damaged",
        "00001.safetensors .rank 1 on .* is damaged: the checksum of its header differs",
    ),
    "values": (lambda path: invert(path / "rank-00001.safetensors", -1), "damaged", "differs of model.own-1|weight"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_by_verify_and_by_load(tmp_path: Path, saved: Path, damage: str) -> None:
    harm, kind, message = DAMAGES[damage]
    path = Path(shutil.copytree(saved, tmp_path / "copy")) / "step-2"
    harm(path)
    (problem,) = verify(path)
    assert problem.kind == kind
    assert re.search(message, problem.text), problem.text
    if damage == "other":
        # A file that belongs to nothing does no harm to a load.
        return

    def load(peers: Peers) -> float:
        state = state_at(0, peers.rank)
        with pytest.raises(ParallelError, match=message):
            checkpoint.load(path.parent, state, "step-2", peers=peers)
        return float(state["model"]["weight"].tensor.sum())

    assert thread_ranks.run(2, load) == [0, 0], "nothing is changed"


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign", "header", "type", "values"])
def test_all_ranks_go_on_from_the_newest_one_that_is_whole(tmp_path: Path, saved: Path, damage: str) -> None:
    harm, _, message = DAMAGES[damage]
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    harm(folder / "step-2")

    def load(peers: Peers) -> tuple[str, float]:
        state = state_at(0, peers.rank)
        loaded = checkpoint.load(folder, state, peers=peers)
        return loaded.tag, float(state["model"]["weight"].tensor.unique())

    with pytest.warns(UserWarning, match=f"(?s)({message}).*'step-1' is used instead"):
        assert thread_ranks.run(2, load) == [("step-1", 1.0)] * 2
    # With its tag, or when all are damaged, all ranks have the error.
    invert(folder / "step-1/rank-00000.safetensors", -1)

    def fail(peers: Peers) -> None:
        with pytest.raises(ParallelError, match=r"step-1/rank-00000.* is damaged.* has no complete checkpoint"):
            checkpoint.load(folder, state_at(0, peers.rank), peers=peers)
        with pytest.raises(checkpoint.DamagedError, match=r"step-1/rank-00000.* is damaged"):
            checkpoint.load(folder, state_at(0, peers.rank), "step-1", peers=peers)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread_ranks.run(2, fail)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        (b'"extra":3', b'{"__python__":"later","value":1}', "of the unknown kind 'later'; a newer release wrote it"),
        (b'"model.step":1', b'{"__python__":"tensor","dtype":"int64"}', "of the kind 'tensor' is damaged: KeyError"),
        (b'"lr":2', b'{"__python__":"float","value":"x"}', "of the kind 'float' is damaged: ValueError"),
    ],
)
def test_a_damaged_value_is_named_before_anything_is_loaded(
    tmp_path: Path, entry: bytes, value: bytes, message: str
) -> None:
    weight = torch.ones(4)
    state = {"model": {"weight": weight, "step": 1}, "optimizer": {"param_groups": [{"lr": 2, "params": []}]}}
    checkpoint.save(tmp_path, "a", state, contents=checkpoint.Contents(extra=3))
    path = tmp_path / "a/manifest.json"
    text = path.read_bytes()
    assert text.count(entry) == 1
    path.write_bytes(text.replace(entry, entry.partition(b":")[0] + b":" + value))
    weight.zero_()
    with pytest.raises(ParallelError, match=message):
        checkpoint.load(tmp_path, state, "a")
    assert not weight.any()


def test_a_manifest_is_the_last_file_and_one_that_is_torn_is_named(tmp_path: Path, saved: Path) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "copy")) / "step-2"
    os.truncate(path / "manifest.json", 100)
    with pytest.raises(ParallelError, match=r"manifest\.json is torn or not a checkpoint's manifest"):
        verify(path)
    with pytest.warns(UserWarning, match="'step-1' is used instead"):
        assert find(path.parent).name == "step-1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"rank-00001.safetensors":{', b'"../rank-1.safetensors":{', "is not a name in this folder"),
        (b'"start":', b'"start":9999999', "outside of rank-"),
        (b'"sizes":[512,64]', b'"sizes":[512,65]', "outside .1024, 64."),
        (b'"sizes":[512,64]', b'"sizes":[511,64]', "is not covered exactly once"),
        (b'"offsets":[512,0]', b'"offsets":[0,0]', "is not covered exactly once"),
        (b'"head_bytes":', b'"head_bytes":-', "has a header of -"),
        (b'"extra":{', b'"extra":{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b",", "is torn or not a checkpoint's"),
        (b'"tag":"step', b'"tag":"\xff', "is torn or not a checkpoint's"),
        (b'"dtype":"F32"', b'"dtype":"F99"', "has the unknown type 'F99'"),
        (b'"version":1', b'"version":2', "reads 'herringbone-checkpoint', version 1"),
    ],
)
def test_a_manifest_that_leads_out_of_its_folder_or_files_is_refused(
    saved: Path, old: bytes, new: bytes, message: str
) -> None:
    text = (saved / "step-2/manifest.json").read_bytes()
    assert old in text
    with pytest.raises(ParallelError, match=message):
        parse(text.replace(old, new, 1), "manifest.json")


def test_an_error_of_one_rank_is_raised_on_all_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    thread_ranks.run(2, lambda peers: checkpoint.save(tmp_path, "a", state_at(1, peers.rank), peers=peers))

    def fail(peers: Peers) -> str:
        def full() -> None:
            raise OSError("no space left on device")

        with pytest.raises((ParallelError, OSError)) as caught:
            checkpoint.async_save(tmp_path, "b", state_at(2, peers.rank), peers=peers, on_complete=full).result()
        return str(caught.value)

    texts = thread_ranks.run(2, fail)
    assert texts == ["no space left on device", "rank 0 cannot save: OSError: no space left on device"]
    assert find(tmp_path).name == "b", "its files were complete when the callback failed"
    assert verify(tmp_path / "a") == []


def test_hosts_without_a_shared_folder_have_their_files_and_load_once_they_are_brought_together(tmp_path: Path) -> None:
    def save(peers: Peers) -> None:
        quarter = torch.full((2,), float(peers.rank))
        state = {"model": {"weight": Piece(quarter, (2 * peers.rank,), (8,))}}
        contents = checkpoint.Contents(extra={"step": 7})
        checkpoint.save(tmp_path / peers.host, "a", state, contents=contents, peers=peers)

    thread_ranks.run(4, save, hosts=["algo-1", "algo-1", "algo-2", "algo-2"])
    # Of two manifests, a retry takes the newer one.
    assert [read_manifest(tmp_path / host / "a").extra["extra"] for host in ("algo-1", "algo-2")] == [{"step": 7}] * 2
    own = {host: sorted(path.name for path in (tmp_path / host / "a").glob("rank*")) for host in ("algo-1", "algo-2")}
    assert own["algo-2"] == ["rank-00002.safetensors", "rank-00003.safetensors"]
    with pytest.raises(
        ParallelError, match=r"rank-00002.* \(rank 2 on algo-2\) is missing; bring the files of all hosts"
    ):
        find(tmp_path / "algo-1")
    # As a retry over SSH merges the folders of its hosts.
    shutil.copytree(tmp_path / "algo-2", tmp_path / "algo-1", dirs_exist_ok=True)
    assert checkpoint.read_plain(find(tmp_path / "algo-1"))["model"]["weight"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_copy_is_of_the_moment_of_the_call(tmp_path: Path) -> None:
    weight = torch.zeros(1 << 18)
    for step in range(3):
        weight.fill_(step)
        pending = checkpoint.async_save(tmp_path, f"step-{step}", {"model": {"weight": weight}})
        weight.fill_(-1)
    pending.result()
    assert pending.done()
    for step in range(3):
        assert checkpoint.read_plain(tmp_path / f"step-{step}")["model"]["weight"].unique().tolist() == [step]


def test_ranks_that_save_next_to_others_leave_their_folders_alone(tmp_path: Path) -> None:
    own, other = tmp_path / ".tp-0.00.unfinished", tmp_path / ".tp-1.00.unfinished"
    for folder in (own, other):
        folder.mkdir()
    state = {"model": {"weight": torch.ones(4)}}
    checkpoint.save(tmp_path, "tp-0", state, peers=Peers.alone(only_savers=False))
    assert (own.exists(), other.exists()) == (False, True)
    checkpoint.save(tmp_path, "tp-2", state)
    assert not other.exists()


def test_a_checkpoint_whose_replacement_was_killed_gets_its_name_back(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.ones(4)}}
    checkpoint.save(tmp_path, "a", state)
    (tmp_path / "a").rename(tmp_path / ".a.00.replaced")
    checkpoint.save(tmp_path, "b", state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "newest"]
    assert verify(tmp_path / "a") == []


def test_a_save_that_failed_is_never_complete(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.ones(4)}}

    def full() -> None:
        raise OSError("no space left on device")

    failed = checkpoint.async_save(tmp_path, "a", state, on_complete=full)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.finalize()
    later = checkpoint.async_save(tmp_path, "b", state)
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            failed.result()
    later.result()
    assert checkpoint.finalize()


def test_newest_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.ones(4)}}
    checkpoint.save(tmp_path / "foreign", "a", state)
    checkpoint.save(tmp_path / "own", "b", state)
    for name in ("../foreign/a", str(tmp_path / "foreign/a")):
        (tmp_path / "own/newest").write_text(name)
        with pytest.warns(UserWarning, match=r"cannot be a checkpoint's tag.*'b' is used instead"):
            assert find(tmp_path / "own") == tmp_path / "own/b"


def step_on_what_was_read(folder: str) -> None:
    state = checkpoint.read_plain(Path(folder, "a"))
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    momentum = state["optimizer"]["state"]["weight"]
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: momentum}})
    parameter.grad = torch.ones(4)
    optimizer.step()


def test_an_optimizer_changes_what_was_read_but_not_the_file(tmp_path: Path) -> None:
    entry = {"momentum_buffer": torch.ones(4)}
    checkpoint.save(tmp_path, "a", {"optimizer": {"state": {"weight": entry}}})
    process = PROCESSES.Process(target=step_on_what_was_read, args=(str(tmp_path),), daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert verify(tmp_path / "a") == []


def test_old_checkpoints_are_removed_after_an_interrupted_removal(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    state = {"model": {"weight": torch.ones(4)}}
    for tag in ("a_partial", "b_partial"):
        checkpoint.save(tmp_path, tag, state)
    (tmp_path / ".a_partial.removed/rank-00000").mkdir(parents=True)
    folder.prune(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b_partial", "newest"]


def test_an_error_that_nobody_waits_for_is_shown_at_the_end_and_fails_the_script(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from herringbone_parallel.torch.checkpoint import api;"
        "api.async_save(sys.argv[1], 'a', {'w': torch.ones(1)}, on_complete=lambda: 1 / 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == 1
