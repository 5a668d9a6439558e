"""Makes the ranks of a context group share each sequence: the entrance of this folder.

A model's stack of layers is cut; everything before and after it works on whole sequences, on every rank:

    embeddings, masks, positions    [1] each rank computes them whole
    first layer                     [2] takes this rank's rows of the hidden states
    each layer                      [3] takes its rows of positions; attention collects keys and values
    last layer                      [4] collects the rows of all ranks
    head, loss                      [5] each rank computes them whole, so labels, padding and pooling need nothing

Layers hold nearly all activations of a long sequence. Ranks of a group read the same batch and have the same loss, and
gradients are averaged over the group along with the shards.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.context_parallel.attention import SharedAttention
from herringbone_parallel.torch.context_parallel.exchange import Exchange, Sequence
from herringbone_parallel.torch.context_parallel.inputs import MEMORY, rows_of_input
from herringbone_parallel.torch.context_parallel.layout import check_apart, of_sequence
from herringbone_parallel.torch.context_parallel.stacks import Stack, find_stacks


def enable(model: nn.Module, mesh: DeviceMesh | None, *, comm: str = "p2p") -> nn.Module:
    """Make the ranks of `mesh` share each sequence of the model, in place, and return the model.

    >>> model = enable(model, mesh["context"])  # doctest: +SKIP

    `mesh` has one axis; None or one rank changes nothing. `comm` is AWS's `cp_comm_type`: keys and values travel in
    messages between two ranks each ("p2p") or in one collective ("all_gather"). Call it before activation
    checkpointing and `fully_shard`.
    Raises `ParallelError` for a model whose
    layers cannot work on a part of a sequence.
    """
    if comm not in {exchange.value for exchange in Exchange}:
        names = ", ".join(exchange.value for exchange in Exchange)
        raise ParallelError(f"cp_comm_type must be one of {names}, not {comm!r}")
    if mesh is None or mesh.size() == 1:
        return model
    stacks = find_stacks(model)
    _check_attention(model)
    for stack in stacks:
        _SharedStack(stack, mesh.get_group(), Exchange(comm)).wrap()
    return model


class _SharedStack:
    """The layers of one stack, and the sequences that pass through them."""

    def __init__(self, stack: Stack, group: dist.ProcessGroup, comm: Exchange) -> None:
        self._stack = stack
        self._group = group
        self._comm = comm
        # By their lengths: a script's batches may differ in length, and a recomputed layer runs after others.
        self._known: dict[int, Sequence] = {}
        self._newest: dict[int, Sequence] = {}

    def wrap(self) -> None:
        """Replace the forward of each layer; a checkpoint that recomputes the layer runs the new one, too."""
        layers = self._stack.layers
        for layer in layers:
            forward = layer.forward
            layer.forward = functools.partial(
                self._run, forward, _parameters(forward), first=layer is layers[0], last=layer is layers[-1]
            )

    def _run(
        self, forward: Callable[..., Any], names: list[str], *args: Any, first: bool, last: bool, **kwargs: Any
    ) -> Any:
        if names[0] in kwargs:
            args = (kwargs.pop(names[0]), *args)
        if not args or not isinstance(args[0], torch.Tensor):
            raise ParallelError(f"the layers of {self._stack.name} do not take hidden states as their first argument")
        hidden = args[0]
        dim = self._stack.dim if hidden.dim() == 3 else 0
        # A layer may take more arguments than its signature names.
        named_args = list(zip_longest(names[1 : len(args)], args[1:], fillvalue="*args"))
        if first:  # [2]
            _check_cache({**dict(named_args), **kwargs})
            sequence = self._sequence(hidden.shape[dim], hidden.device)
            self._newest[sequence.held] = sequence
            hidden = sequence.rows_of(hidden, dim)
        else:
            sequence = self._newest[hidden.shape[dim]]
        sequences = {sequence.held: sequence}

        def rows_of(name: str, value: Any) -> Any:  # [3]
            if name not in MEMORY or not isinstance(value, torch.Tensor):
                return rows_of_input(name, value, sequence)
            memory = self._sequence(value.shape[dim], value.device)
            check_apart(sequence.layout, memory.layout)
            sequences[memory.held] = memory
            return memory.rows_of(value, dim)

        others = [rows_of(name, value) for name, value in named_args]
        options = {name: rows_of(name, value) for name, value in kwargs.items()}
        with SharedAttention(sequences) as attention:
            output = forward(hidden, *others, **options)
        if not attention.calls:
            raise ParallelError(
                f"a layer of {self._stack.name} called no scaled_dot_product_attention, so its rows would see this"
                " rank's part of the sequence only: build a transformers model with attn_implementation='sdpa', or call"
                " torch.nn.functional.scaled_dot_product_attention in the layer"
            )
        return _on_hidden(output, lambda rows: sequence.gather(rows, dim)) if last else output  # [4]

    def _sequence(self, length: int, device: torch.device) -> Sequence:
        if length not in self._known:
            layout = of_sequence(length, dist.get_world_size(self._group))
            self._known[length] = Sequence(layout, self._group, self._comm, device)
        return self._known[length]


def _check_cache(arguments: dict[str, Any]) -> None:
    for name in ("past_key_values", "past_key_value", "layer_past"):
        cache = arguments.get(name)
        if cache is not None and hasattr(cache, "get_seq_length") and cache.get_seq_length() > 0:
            raise ParallelError(
                "generation with a cache of keys and values needs whole sequences on each rank: generate with a model"
                " without context parallelism, or pass use_cache=False"
            )


def _on_hidden(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change the hidden states of a layer's output: the output itself, or the first of several."""
    if isinstance(output, torch.Tensor):
        return change(output)
    return (change(output[0]), *output[1:])


def _parameters(forward: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in inspect.signature(forward).parameters.items() if parameter.kind in kinds]


def _check_attention(model: nn.Module) -> None:
    """Refuse a model of transformers that computes attention in another way, before its first step."""
    config = getattr(model, "config", None)
    name = getattr(config, "_attn_implementation", "sdpa")
    if name not in ("sdpa", None):
        raise ParallelError(
            f"context parallelism shares torch's scaled_dot_product_attention, and {type(model).__name__} uses {name}"
            " attention: build it with attn_implementation='sdpa'"
        )
