"""Measure how long ranks take to load a model and its optimizer, with our form and with accelerate's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import checkpoint, in_turn, measured, medians, ratio, say, sharded, state_of, train_step
from torch import nn

from herringbone_parallel.torch.checkpoint.pieces import as_bytes, pieces_by_name
from herringbone_parallel.torch.checkpoint.states import flatten


def resume(folder: str, width: int, layers: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of five loads into the same model and optimizer, in turn; all files are in the page cache.

    - `ours`: what a script does: torch's state dicts, our load, the options of the optimizer's groups
    - `ours_load`: our load alone, into a state that the script keeps
    - `floor`: each rank reads the bytes of its tensors straight into their memory, without any check
    - `full`, `sharded`: `load_state` of accelerate, with its full and its sharded state
    """
    model, optimizer = sharded(width, layers)
    by_accelerate, plugins = _accelerator(model, optimizer)

    def in_form(kind: str) -> str:
        by_accelerate.state.fsdp_plugin = plugins[kind]
        return str(Path(folder, kind))

    kept = state_of(model, optimizer)

    def ours() -> None:
        state = state_of(model, optimizer)
        # The tensors of the state are those of the model and the optimizer; options of groups are not.
        checkpoint.load(folder, state)
        for group, saved in zip(optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})

    saves = {"ours": round(measured(lambda: checkpoint.save(folder, "a", state_of(model, optimizer))).seconds, 3)}
    for name in plugins:
        path = in_form(name)
        saves[name] = round(measured(lambda: by_accelerate.save_state(path)).seconds, 3)  # noqa: B023
    say(f"saved: {saves}")
    floor = _Floor(Path(folder, "a"), kept)
    before = [parameter.detach().to_local().clone() for parameter in model.parameters()]
    ways = {
        "ours": ours,
        "ours_load": lambda: checkpoint.load(folder, kept),
        "floor": floor.read,
        "full": lambda: by_accelerate.load_state(in_form("full")),
        "sharded": lambda: by_accelerate.load_state(in_form("sharded")),
    }
    for name, call in ways.items():
        train_step(model, optimizer, width)
        measured(call)
        after = [parameter.detach().to_local() for parameter in model.parameters()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), name
    kept = state_of(model, optimizer)
    floor.close()
    floor = _Floor(Path(folder, "a"), kept)
    ways["floor"] = floor.read
    taken = in_turn(ways, rounds)
    floor.close()
    return {
        "bytes": checkpoint.Reader(Path(folder, "a")).manifest.bytes,
        **medians(taken),
        "save": saves,
        **{f"ours_over_{name}": ratio(taken, "ours", name) for name in ("full", "sharded", "floor")},
    }


def _accelerator(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, dict[str, Any]]:
    """Return an `Accelerator` that saves and loads this model as one that it has sharded, and a plugin for each form.

    accelerate neither shards CPU ranks nor reads its FSDP plugin there, and would save a replicated model. So it gets a
    model of `fully_shard`, and takes from there the path that it takes on GPUs.
    """
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    # A plugin for each form: the full one leaves options in its plugin that the other cannot have.
    plugins = {
        name: FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind, cpu_ram_efficient_loading=False)
        for name, kind in (("full", "FULL_STATE_DICT"), ("sharded", "SHARDED_STATE_DICT"))
    }
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugins["full"])
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator._models.append(model)
    accelerator._optimizers.append(optimizer)
    return accelerator, plugins


class _Floor:
    """The bytes that this rank has saved, and the memory of the tensors to which they belong."""

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        manifest = checkpoint.Reader(path).manifest
        name = f"rank-{dist.get_rank():05d}.safetensors"
        pieces = dict(pieces_by_name(flatten(state).tensors))
        self._file = os.open(path / name, os.O_RDONLY)
        self._reads = [
            (as_bytes(pieces[tensor].tensor), chunk.start)
            for tensor, entry in manifest.tensors.items()
            for chunk in entry.chunks
            if chunk.file == name
        ]

    def read(self) -> None:
        for memory, start in self._reads:
            assert os.preadv(self._file, [memory], start) == len(memory)

    def close(self) -> None:
        os.close(self._file)
