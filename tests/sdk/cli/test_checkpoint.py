"""`herringbone checkpoint`: list and verify without torch, and convert in a Python with torch."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herringbone.cli.__main__ import main
from herringbone.records.home import find_home
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.checkpoint.verification import newest_complete
from herringbone_contract.errors import ParallelError

# The tests write checkpoints with it; other Pythons of CI have none.
torch = pytest.importorskip("torch", reason="torch is not installed")
from herringbone_parallel.torch.checkpoint import api as checkpoint  # noqa: E402
from herringbone_parallel.torch.checkpoint import convert  # noqa: E402

Capture = pytest.CaptureFixture[str]


def trained() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, *tags: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    for tag in tags:
        contents = checkpoint.Contents(mesh={"shard": 2, "tensor": 1})
        checkpoint.save(folder, tag, state, contents=contents, peers=checkpoint.Peers.alone())


def test_ls_shows_what_is_there_and_what_is_not_finished(tmp_path: Path, capsys: Capture) -> None:
    save(tmp_path, "step-1", "step-2")
    (tmp_path / ".step-3.00.unfinished").mkdir()
    (tmp_path / "step-1/rank-00000.safetensors").unlink()
    (tmp_path / "other").mkdir()
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["TAG", "SAVED", "SIZE", "RANKS", "MESH", "STATE"]
    by_tag = {row.split()[0]: row for row in rows}
    assert by_tag["step-2"].endswith("1      shard 2  newest")
    assert "is missing; bring the files of all hosts" in by_tag["step-1"]
    assert "unfinished" in by_tag["step-3"]
    assert "has no manifest.json" in by_tag["other"]

    assert main(["checkpoint", "ls", str(tmp_path), "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[-1]
    assert (newest["tag"], newest["newest"], newest["ranks"], newest["problem"]) == ("step-2", True, 1, None)


def test_verify_reads_the_files_and_its_exit_code_tells(tmp_path: Path, capsys: Capture) -> None:
    save(tmp_path, "step-1", "step-2")
    (tmp_path / ".step-3.00.unfinished").mkdir()
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("complete, all checksums are right") == 2
    file = tmp_path / "step-1/rank-00000.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert "rank-00000.safetensors is damaged: the checksum differs of" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(tmp_path / "step-2")]) == 0
    assert main(["checkpoint", "verify", str(tmp_path), "step-1", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [problem["kind"] for problem in result["problems"]] == ["damaged"]
    assert main(["checkpoint", "verify", str(tmp_path), "step-9"]) == 2
    assert "has no checkpoint 'step-9': herringbone checkpoint ls" in capsys.readouterr().err


def test_a_job_is_named_instead_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    home = find_home()
    home.path.mkdir()
    plan = json.dumps({"job_name": "letters", "hosts": [{"name": "algo-1"}], "options": {}})
    JobIndex(home.index).add(JobRecord(name="letters", backend="local_process", plan=plan, created=1.0))
    assert main(["checkpoint", "ls", "letters"]) == 2
    assert "job letters has no checkpoints on this machine; bring them with:" in capsys.readouterr().err
    save(home.job("letters").host("algo-1") / "checkpoints", "step-1")
    assert main(["checkpoint", "verify", "letters"]) == 0
    assert "letters/hosts/algo-1/ml/checkpoints/step-1: complete" in capsys.readouterr().out
    assert main(["checkpoint", "convert", "letters", "out.safetensors"]) == 0
    assert Path("out.safetensors").exists()
    assert main(["checkpoint", "convert", "nosuch", "out.pt"]) == 2
    assert "no job 'nosuch'" in capsys.readouterr().err
    (home.job("letters").host("algo-1") / "checkpoints/newest").unlink()
    assert main(["checkpoint", "convert", "letters", "out.pt"]) == 2
    assert "has no complete checkpoint" in capsys.readouterr().err


def test_ls_and_verify_load_neither_torch_nor_the_libraries(tmp_path: Path) -> None:
    save(tmp_path, "a")
    code = (
        "import sys; from herringbone.cli.__main__ import main;"
        f"folder = {str(tmp_path)!r};"
        "assert main(['checkpoint', 'ls', folder]) == main(['checkpoint', 'verify', folder]) == 0;"
        "assert not {'torch', 'herringbone_parallel', 'pickle', 'sqlite3'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_convert_runs_in_a_python_with_torch(tmp_path: Path, capsys: Capture) -> None:
    save(tmp_path, "a")
    target = tmp_path / "model.safetensors"
    assert main(["checkpoint", "convert", str(tmp_path / "a"), str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == len(trained()[0].state_dict())
    assert main(["checkpoint", "convert", str(tmp_path / "a"), str(target)]) == 2
    assert "model.safetensors exists; name another one" in capsys.readouterr().err
    assert main(["checkpoint", "convert", str(tmp_path / "nosuch"), "b.pt"]) == 2
    assert "nosuch does not exist" in capsys.readouterr().err
    assert main(["checkpoint", "convert", str(tmp_path / "a"), "b.pt", "--python", "/no/python"]) == 2
    assert "/no/python cannot be started" in capsys.readouterr().err


def test_a_python_without_torch_is_named_with_the_remedy(tmp_path: Path, capsys: Capture) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    assert main(["checkpoint", "convert", str(tmp_path), "b.pt", "--python", str(python)]) == 2
    error = capsys.readouterr().err
    assert "No module named 'torch'. Install it there" in error
    assert "-m pip install torch numpy" in error


def test_round_trips_through_every_form_keep_the_bits(tmp_path: Path) -> None:
    save(tmp_path, "a")
    model, optimizer = trained()
    order = ["model.safetensors", "b", "model.pt", "c", "full.pt"]
    source = tmp_path / "a"
    for name in order[:-1]:
        convert.convert(source, tmp_path / name, with_optimizer=False)
        source = tmp_path / name
        weights = convert.read(source).model
        assert weights.keys() == model.state_dict().keys()
        assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))

    # The optimizer's state as torch's optimizers load it.
    convert.convert(tmp_path / "a", tmp_path / "full.pt", with_optimizer=True)
    content = torch.load(tmp_path / "full.pt", weights_only=True)
    other = torch.optim.AdamW(model.parameters(), lr=0.5)
    other.load_state_dict(content["optimizer"])
    assert other.param_groups[0]["lr"] == 0.1
    for parameter, entry in optimizer.state.items():
        assert all(torch.equal(other.state[parameter][key], value) for key, value in entry.items())


def test_a_converted_checkpoint_does_not_become_a_jobs_newest_one(tmp_path: Path) -> None:
    save(tmp_path / "job", "a")
    convert.convert(tmp_path / "job/a", tmp_path / "job/imported", with_optimizer=True)
    assert checkpoint.find(tmp_path / "job").name == "a"
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["a", "imported", "newest"]
    assert checkpoint.find(tmp_path / "job", "imported")
    # In a folder without checkpoints it is the one to begin with.
    convert.convert(tmp_path / "job/a", tmp_path / "new/folder/imported", with_optimizer=True)
    assert checkpoint.find(tmp_path / "new/folder").name == "imported"


def test_empty_tensors_are_kept_and_values_that_are_no_tensors_are_named(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "none": torch.empty(0, 3), "_extra_state": 7}, "step": 1}
    checkpoint.save(tmp_path, "a", state)
    result = convert.convert(tmp_path / "a", tmp_path / "model.safetensors", with_optimizer=False)
    assert result["skipped"] == ["step", "model._extra_state"]
    weights = convert.read(tmp_path / "model.safetensors").model
    assert {name: tuple(value.shape) for name, value in weights.items()} == {"w": (2,), "none": (0, 3)}


def test_checkpoints_of_dcp_are_read_without_trusting_their_pickle(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model, _ = trained()
    state: dict[str, Any] = {"model": model.state_dict(), "step": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    result = convert.convert(tmp_path / "dcp", tmp_path / "model.pt", with_optimizer=False)
    assert result["skipped"] == ["step"]
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())

    class Hostile:
        def __reduce__(self) -> Any:
            return print, ("unpickled",)

    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(Exception, match=r"not to be trusted: it names builtins\.print"):
        convert.read(tmp_path / "dcp")
    for content in (pickle.dumps({}), b"(R."):
        (tmp_path / "dcp/.metadata").write_bytes(content)
        with pytest.raises(ParallelError, match="is damaged or not to be trusted"):
            convert.read(tmp_path / "dcp")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: torch.save({"a": object}, path), "holds objects other than tensors"),
        (lambda path: torch.save([1], path), "holds no state dict but a list"),
        (lambda path: torch.save({"a": 1}, path), "is no state dict: 'a' is a int"),
        (lambda path: torch.save({"a": torch.eye(2).to_sparse()}, path), "'a' is sparse_coo, not dense"),
        (lambda path: torch.save({"a": torch.eye(2, device="meta")}, path), "'a' is on the meta device"),
        (lambda path: path.write_bytes(b"\x00" * 20), "cannot be read|is damaged"),
        (lambda path: path.mkdir(), "neither manifest.json nor .metadata"),
        (lambda path: None, "does not exist"),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    make(tmp_path / "source.pt")
    with pytest.raises(Exception, match=message):
        convert.convert(tmp_path / "source.pt", tmp_path / "target.pt", with_optimizer=False)
    assert not (tmp_path / "target.pt").exists()


@pytest.mark.parametrize("name", ["newest", "step-1/manifest.json", "step-1/rank-00000.safetensors"])
def test_a_fifo_in_place_of_a_file_is_named_and_nothing_waits_for_it(
    tmp_path: Path, capsys: Capture, name: str
) -> None:
    save(tmp_path, "step-1")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert ("no regular file" in capsys.readouterr().out) == (name != "newest")


F32 = {"dtype": "F32", "shape": [1]}
LIES: dict[str, tuple[dict[str, Any], int]] = {
    "a negative shape": ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}, 8),
    "two negative sizes": ({"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}, 8),
    "an offset in the header": ({"a": {**F32, "data_offsets": [-4, 0]}}, 8),
    "the same bytes twice": ({name: {**F32, "data_offsets": [0, 4]} for name in "ab"}, 4),
    "a gap": ({"a": {**F32, "data_offsets": [0, 4]}, "b": {**F32, "data_offsets": [8, 12]}}, 12),
    "bytes of no tensor": ({"a": {**F32, "data_offsets": [0, 4]}}, 800),
    "fewer bytes": ({"a": {**F32, "data_offsets": [0, 4]}}, 3),
    "no header but a list": ([], 0),  # type: ignore[dict-item]
    "offsets that are texts": ({"a": {**F32, "data_offsets": ["0", "4"]}}, 4),
    "one offset": ({"a": {**F32, "data_offsets": [0]}}, 4),
    "an entry that is a number": ({"a": 3}, 4),
    "offsets that are booleans": ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}, 1),
    "a size that is a boolean": ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4),
    "offsets that are no whole numbers": ({"a": {**F32, "data_offsets": [0, 4e0]}}, 4),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_safetensors_file_whose_header_lies_is_refused(tmp_path: Path, lie: str) -> None:
    header, count = LIES[lie]
    text = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(count))
    with pytest.raises(ParallelError, match="is torn or no safetensors file"):
        convert.read(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "lie", [{"world_size": -5}, {"mesh": {"tensor": 0}}, {"time": -1.0}, {"time": 1e300}, {"time": 9e10}]
)
def test_a_manifest_that_lies_is_never_the_newest(tmp_path: Path, lie: dict[str, Any]) -> None:
    save(tmp_path, "step-1", "step-2")
    file = tmp_path / "step-2/manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | lie))
    (tmp_path / "newest").write_text("missing")
    assert newest_complete(tmp_path)[0].tag == "step-1"


def test_conjugated_values_are_written_as_they_are(tmp_path: Path) -> None:
    values = torch.complex(torch.ones(2), torch.arange(2.0)).conj()
    torch.save({"a": values, "b": (values * 1).imag}, tmp_path / "a.pt")
    convert.convert(tmp_path / "a.pt", tmp_path / "a.safetensors", with_optimizer=False)
    read = convert.read(tmp_path / "a.safetensors").model
    assert [tensor.tolist() for tensor in read.values()] == [[1, 1 - 1j], [0, -1]]


def test_a_safetensors_header_longer_than_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ParallelError, match="is torn or no safetensors file"):
        convert.read(tmp_path / "a.safetensors")


@pytest.mark.parametrize("harm", ["no chunks", "one row less", "a larger tensor", "a FIFO"])
def test_a_dcp_checkpoint_whose_chunks_leave_gaps_is_refused(tmp_path: Path, harm: str) -> None:
    """What no chunk covered was converted from memory of the process."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch.arange(12.0).view(3, 4)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    file = tmp_path / "dcp/.metadata"
    metadata = pickle.loads(file.read_bytes())  # noqa: S301 - our own
    entry = metadata.state_dict_metadata["w"]
    if harm == "no chunks":
        entry.chunks.clear()
    elif harm == "one row less":
        entry.chunks[0].sizes = torch.Size([2, 4])
    elif harm == "a larger tensor":
        entry.size = torch.Size([5, 4])
    file.unlink()
    if harm == "a FIFO":
        os.mkfifo(file)
    else:
        file.write_bytes(pickle.dumps(metadata))
    with pytest.raises((ParallelError, OSError), match=r"do not cover it exactly once|no regular file"):
        convert.read(tmp_path / "dcp")


def test_names_that_safetensors_cannot_hold_are_refused(tmp_path: Path) -> None:
    twice = (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
    )
    (tmp_path / "a.safetensors").write_bytes(len(twice).to_bytes(8, "little") + twice + bytes(4))
    with pytest.raises(ParallelError, match="a name is there twice"):
        convert.read(tmp_path / "a.safetensors")
    torch.save({"__metadata__": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(ParallelError, match="cannot hold a tensor of the name '__metadata__'"):
        convert.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", with_optimizer=False)
