"""A checkpoint that one mesh wrote is read by any other, bit for bit, and by torch without this library."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from herringbone_contract.checkpoint.verification import verify
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint import api as checkpoint
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import Piece, flat_pieces
from tests.parallel.torch.checkpoint import thread_ranks

PYTHON = Path(__file__).parents[4] / ".venv-huggingface" / "bin" / "python"
LAYERS = 6


def whole_state() -> dict[str, Any]:
    """Return the state of a model of several types and shapes, and of its optimizer, by name."""
    generator = torch.Generator().manual_seed(5)

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    model: dict[str, Any] = {"embedding.weight": values(11, 4, dtype=torch.bfloat16)}
    for layer in range(LAYERS):
        model[f"layers.{layer}.weight"] = values(7, 5)
        model[f"layers.{layer}.bias"] = values(7, dtype=torch.float64)
        model[f"layers.{layer}.count"] = torch.tensor(layer)
        model[f"layers.{layer}.empty"] = values(0, 3)
    state = {
        name: {"exp_avg": values(*value.shape), "step": torch.tensor(3.0), "seen": 7}
        for name, value in model.items()
        if value.is_floating_point()
    }
    groups = [{"lr": 0.1, "betas": (0.9, math.inf), "fused": None, "params": list(state)}]
    return {"model": model, "optimizer": {"state": state, "param_groups": groups}}


def rows(value: Any, part: int, parts: int) -> Any:
    """Return a part of the rows, as `fully_shard` divides them: the last parts may be shorter, or have none."""
    size = -(-value.shape[0] // parts)
    return Piece(
        value[part * size : (part + 1) * size],
        (min(part * size, value.shape[0]), *[0] * (value.dim() - 1)),
        value.shape,
    )


def columns(value: Any, part: int, parts: int) -> Any:
    size = -(-value.shape[-1] // parts)
    begin = min(part * size, value.shape[-1])
    return Piece(value[..., begin : begin + size], (*[0] * (value.dim() - 1), begin), value.shape)


def flat(value: Any, part: int, parts: int) -> Any:
    """Return a range of the flattened values: a list of boxes."""
    size = -(-value.numel() // parts)
    begin = min(part * size, value.numel())
    return flat_pieces(value.reshape(-1)[begin : begin + size], begin, value.shape)


def part_of(state: dict[str, Any], rank: int, stages: int, parts: int, split: Any) -> dict[str, Any]:
    """Return the state of one rank: the layers of its pipeline stage, and of each tensor its part."""
    stage, part = divmod(rank, parts)

    def of_stage(name: str) -> bool:
        layer = int(name.split(".")[1]) if name.startswith("layers") else 0
        return layer * stages // LAYERS == stage

    def local(value: Any) -> Any:
        return split(value, part, parts) if torch.is_tensor(value) and value.dim() else value

    optimizer = {
        name: {key: local(value) for key, value in entry.items()}
        for name, entry in state["optimizer"]["state"].items()
        if of_stage(name)
    }
    groups = [{**group, "params": list(optimizer)} for group in state["optimizer"]["param_groups"]]
    model = {name: local(value) for name, value in state["model"].items() if of_stage(name)}
    return {"model": model, "optimizer": {"state": optimizer, "param_groups": groups}}


def zeros(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of the same names and shapes, with other values."""
    optimizer = {
        name: {key: torch.zeros_like(value) if torch.is_tensor(value) else 0 for key, value in entry.items()}
        for name, entry in state["optimizer"]["state"].items()
    }
    groups = [{**group, "lr": 0.0} for group in state["optimizer"]["param_groups"]]
    model = {name: torch.zeros_like(value) for name, value in state["model"].items()}
    return {"model": model, "optimizer": {"state": optimizer, "param_groups": groups}}


def save(folder: Path, tag: str, state: dict[str, Any], mesh: tuple[int, int, Any]) -> None:
    stages, parts, split = mesh
    thread_ranks.run(
        stages * parts,
        lambda peers: checkpoint.save(
            folder,
            tag,
            part_of(state, peers.rank, stages, parts, split),
            peers=peers,
            contents=checkpoint.Contents(extra={"step": 9}, mesh={"pipeline": stages}, user_content={"at": (1, 2)}),
        ),
    )


def load(folder: Path, tag: str, mesh: tuple[int, int, Any]) -> dict[str, Any]:
    """Return the whole state after each rank of the mesh has loaded its part of it."""
    stages, parts, split = mesh
    state = zeros(whole_state())
    groups: list[Any] = []

    def load_part(peers: Peers) -> None:
        # Views of the whole tensors, so that all ranks together fill them.
        part = part_of(state, peers.rank, stages, parts, split)
        loaded = checkpoint.load(folder, part, tag, peers=peers)
        assert loaded.extra == {"step": 9}
        assert loaded.user_content() == {"at": (1, 2)}
        groups.append(part["optimizer"]["param_groups"][0])
        for name, entry in part["optimizer"]["state"].items():
            state["optimizer"]["state"][name]["seen"] = entry["seen"]

    thread_ranks.run(stages * parts, load_part)
    assert {(group["lr"], group["betas"]) for group in groups} == {(0.1, (0.9, math.inf))}
    return {**state, "optimizer": {**state["optimizer"], "param_groups": whole_state()["optimizer"]["param_groups"]}}


def assert_equal(state: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert set(state) == set(expected)
        for key, value in expected.items():
            assert_equal(state[key], value)
    elif torch.is_tensor(expected):
        assert state.dtype == expected.dtype
        assert torch.equal(state, expected)
    else:
        assert state == expected


def test_eight_ranks_then_four_then_six_then_one_have_equal_bits(tmp_path: Path) -> None:
    state = whole_state()
    meshes = [(2, 4, rows), (1, 4, columns), (3, 2, flat), (1, 1, rows), (6, 1, rows), (2, 3, rows)]
    for number, mesh in enumerate(meshes):
        save(tmp_path, f"step-{number}", state, mesh)
        assert verify(tmp_path / f"step-{number}") == []
        state = load(tmp_path, f"step-{number}", meshes[(number + 1) % len(meshes)])
        assert_equal(state, whole_state())
    assert (tmp_path / "newest").read_text() == "step-5\n"
    plain = checkpoint.read_plain(tmp_path / "step-0")
    plain["optimizer"]["param_groups"][0]["params"].sort()
    expected = whole_state()
    expected["optimizer"]["param_groups"][0]["params"].sort()
    assert_equal(plain, expected)


def test_replicas_are_written_once_and_large_ones_by_all(tmp_path: Path) -> None:
    state = {"model": {"large": torch.ones(4, 1 << 18), "other": torch.ones(1 << 19), "small": torch.zeros(3)}}
    thread_ranks.run(3, lambda peers: checkpoint.save(tmp_path, "a", state, peers=peers))
    manifest = checkpoint.Reader(tmp_path / "a").manifest
    files = {name: tensor.chunks[0].file for name, tensor in manifest.tensors.items()}
    assert sum(file.bytes - file.head_bytes for file in manifest.files.values()) == (1 << 22) + (1 << 21) + 12
    assert files == {
        "model.large": "rank-00000.safetensors",
        "model.other": "rank-00001.safetensors",
        # Buffers of replicas may differ, and those of the first one belong together.
        "model.small": "rank-00000.safetensors",
    }


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([{"w": Piece(torch.ones(2), (0,), (4,))}, {}], "the ranks hold 2 values of 'model.w', which has 4"),
        (
            [{"w": Piece(torch.ones(2), (0,), (4,))}, {"w": Piece(torch.ones(2), (1,), (4,))}],
            "the ranks hold 4 values of 'model.w', which has 4: pieces are missing, or overlap",
        ),
        (
            [{"w": torch.ones(2)}, {"w": torch.ones(2), "param_groups": [{"params": ["w"], "schedule": print}]}],
            "rank 1 cannot save: the checkpoint's value 'model.param_groups.schedule' is a builtin_function",
        ),
        ([{"w": torch.ones(2)}, {"w": torch.ones(3)}], "ranks have different tensors 'model.w'"),
        ([{"w": torch.ones(2)}, {"w": object()}], "rank 1 cannot save: the checkpoint's value 'model.w' is a object"),
        ([{"w": Piece(torch.ones(2), (3,), (4,))}, {}], "'model.w' at .3. of .2. is outside of .4."),
    ],
)
def test_a_state_that_is_no_whole_is_refused_on_every_rank_and_leaves_nothing(
    tmp_path: Path, states: list[Any], message: str
) -> None:
    def save_part(peers: Peers) -> str:
        with pytest.raises(ParallelError) as caught:
            checkpoint.save(tmp_path, "a", {"model": states[peers.rank]}, peers=peers)
        return str(caught.value)

    texts = thread_ranks.run(2, save_part)
    assert any(re.search(message, text) for text in texts), texts
    assert len(texts) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_an_optimizer_that_the_first_rank_lacks_are_kept(tmp_path: Path) -> None:
    def save(peers: Peers) -> None:
        state = {"tail": {"param_groups": [{"lr": 0.5, "params": ["w"]}]}} if peers.rank else {"w": torch.ones(1)}
        checkpoint.save(tmp_path, "a", state, peers=peers)

    thread_ranks.run(2, save)
    assert checkpoint.read_plain(tmp_path / "a")["tail"]["param_groups"] == [{"lr": 0.5, "params": ["w"]}]


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(1, 5), min_size=0, max_size=4), data=st.data())
def test_a_range_of_the_flattened_values_is_a_few_boxes(shape: list[int], data: st.DataObject) -> None:
    count = math.prod(shape)
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    whole = torch.arange(count).reshape(shape)
    pieces = flat_pieces(whole.reshape(-1)[begin:end], begin, shape)
    assert len(pieces) <= max(2 * len(shape) - 1, 1)
    restored = torch.full(tuple(shape), -1)
    for piece in pieces:
        index = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.tensor.shape, strict=True))
        restored[index] = piece.tensor
    expected = torch.where((whole >= begin) & (whole < end), whole, torch.full_like(whole, -1))
    assert torch.equal(restored, expected)


READ = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

expected = torch.load(sys.argv[2])
state = {"model": {name: torch.zeros_like(value) for name, value in expected.items()}}
dcp.load(state, storage_reader=HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
assert all(torch.equal(state["model"][name], value) for name, value in expected.items())
assert not any(name.startswith("herringbone") for name in sys.modules)
"""


@pytest.mark.huggingface
def test_torch_reads_the_same_files_without_this_library(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with safetensors: tests/huggingface/setup makes .venv-huggingface")
    save(tmp_path, "a", whole_state(), (2, 4, rows))
    # torch's reader looks for no boxes of tensors without values.
    torch.save({name: value for name, value in whole_state()["model"].items() if value.numel()}, tmp_path / "expected")
    subprocess.run([PYTHON, "-c", READ, tmp_path / "a", tmp_path / "expected"], check=True, timeout=60)
