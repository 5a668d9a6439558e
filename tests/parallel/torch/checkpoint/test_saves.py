"""The plan of a save: kept while nothing changes, made again when one rank changes, and its copy made meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from herringbone_contract.checkpoint import manifest
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint import api as checkpoint
from herringbone_parallel.torch.checkpoint.peers import Peers
from tests.parallel.torch.checkpoint import thread_ranks


def test_a_save_with_the_plan_of_the_one_before_sends_integers_until_the_files_are_written(tmp_path: Path) -> None:
    sent: list[Any] = []

    def gather(value: Any) -> list[Any]:
        sent.append(value)
        return [value]

    peers = Peers(0, 1, gather)
    before_files = []
    for tag, length in (("a", 4), ("b", 4), ("c", 5)):
        sent.clear()
        checkpoint.save(tmp_path, tag, {"model": {"w": torch.ones(length)}}, peers=peers)
        # The last two are what was written, and that the checkpoint is complete.
        before_files.append([isinstance(value, list) for value in sent[:-2]])
    integers, descriptions = True, False
    assert before_files == [
        [integers, descriptions, integers],
        [integers, integers],
        [integers, descriptions, integers],
    ]


def test_a_rank_that_changes_nothing_follows_one_that_does(tmp_path: Path) -> None:
    def save(peers: Peers) -> None:
        shared = torch.zeros(1 << 19)
        for step in range(4):
            shared.fill_(step)
            state = {"shared": shared, "other": torch.full((1 << 19,), float(step))}
            if peers.rank == 1 and step >= 2:
                # The largest one: now rank 0 writes both of the others.
                state["own"] = torch.full((1 << 21,), float(step))
            pending = checkpoint.async_save(tmp_path, f"step-{step}", {"model": state}, peers=peers)
            shared.fill_(-1)
            pending.result()

    thread_ranks.run(2, save)
    for step in range(4):
        model = checkpoint.read_plain(tmp_path / f"step-{step}")["model"]
        assert {name: value.unique().tolist() for name, value in model.items()} == {name: [step] for name in model}
    names = {
        step: {
            name: tensor.chunks[0].file for name, tensor in checkpoint.Reader(tmp_path / step).manifest.tensors.items()
        }
        for step in ("step-1", "step-3")
    }
    assert names["step-1"] == {"model.shared": "rank-00000.safetensors", "model.other": "rank-00001.safetensors"}
    assert names["step-3"]["model.shared"] == names["step-3"]["model.other"] == "rank-00000.safetensors"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_tensor_is_accepted_only_with_each_value_in_one_chunk(data: st.DataObject) -> None:
    shape = (3, 2)
    height, width = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
    # Whole rows at the top, and the rest in two columns.
    boxes = [[0, 0, height, 2], [height, 0, 3 - height, width], [height, width, 3 - height, 2 - width]]
    boxes = data.draw(st.permutations(boxes))
    # Then one or two numbers are wrong in half of the examples.
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        data.draw(st.sampled_from(boxes))[data.draw(st.integers(0, 3))] = data.draw(st.integers(0, 3))
    counts = torch.zeros(shape)
    inside = True
    for row, column, height, width in boxes:
        inside = inside and row + height <= 3 and column + width <= 2
        counts[row : row + height, column : column + width] += 1
    chunks = tuple(manifest.Chunk("f", 0, (row, column), (height, width), 0) for row, column, height, width in boxes)
    text = manifest.to_json(
        manifest.Manifest(
            save="00", tag="a", time=0.0, torch="2", world_size=1, mesh={},
            files={"f": manifest.File(1 << 10, 0, 0, 0, "algo-1")},
            tensors={"w": manifest.Tensor("F32", shape, chunks)},
        )
    )  # fmt: skip
    try:
        manifest.parse(text, "manifest.json")
    except ParallelError:
        assert not (inside and bool((counts == 1).all()))
    else:
        assert inside
        assert bool((counts == 1).all())
