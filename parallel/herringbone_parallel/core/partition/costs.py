"""Describes a model's costs: a tree of modules with bytes and seconds, the values between them, and the ranks' link.

An adaptor measures them in one traced step, and the partitioner reads nothing else. All figures are a node's *own*:
those of its children are in the children.

    root  ""             parameters {}          seconds: the root's own operations
    +-- "embed"          parameters {1: 4000}
    +-- "block"          parameters {}          seconds: the residual addition
    |   +-- "block.fc"   parameters {2: 800}
    +-- "head"           parameters {1: 4000}   the same identity: one parameter, used twice
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from herringbone_contract.errors import ParallelError

Bytes = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0)]


class CostNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One module and its own costs.

    >>> CostNode(path="head", parameters={1: 4000}, seconds=0.002, input_bytes=512).path
    'head'

    `path` is dotted, "" for the model itself. `parameters` maps the identity of each own parameter or buffer to the
    bytes that a rank holds because of it; a parameter that modules share has one identity. Include the gradient and the
    optimizer state if a memory cap shall mean the device's memory. `activation_bytes` are kept for the backward, by all
    live microbatches together. `seconds` are forward and backward of one microbatch. `input_bytes` is the size of a
    call's inputs. `children` are in the order of their first call.
    """

    path: str
    parameters: dict[int, Bytes] = {}
    activation_bytes: Bytes = 0
    seconds: Seconds = 0.0
    input_bytes: Bytes = 0
    children: tuple[CostNode, ...] = ()

    def walk(self) -> Iterator[CostNode]:
        """Yield the node and all below it, parents first, in call order."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


class Value(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that one module makes and others use, by their paths.

        Value(source="embed", users=("block.fc", "head"), forward_bytes=512, backward_bytes=512)

    It moves at most once to each rank that uses it, and a gradient of `backward_bytes` comes back from each
    (0 where nothing upstream needs one).
    """

    source: str
    users: tuple[str, ...]
    forward_bytes: Bytes
    backward_bytes: Bytes


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speed of a message from one rank to another: a fixed time, and bytes per second.

    >>> Link(seconds=1e-4, bytes_per_second=1e9).transfer_seconds(1_000_000, 0)
    0.0011
    """

    seconds: Seconds = 0.0
    bytes_per_second: Annotated[float, Meta(gt=0.0)]

    def transfer_seconds(self, forward_bytes: int, backward_bytes: int) -> float:
        """Return the seconds of one value and its gradient; nothing is sent for 0 bytes."""
        messages = (forward_bytes > 0) + (backward_bytes > 0)
        return messages * self.seconds + (forward_bytes + backward_bytes) / self.bytes_per_second


class CostTree(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's costs. Without `values` it counts as a chain: each module uses the output of the one before."""

    root: CostNode
    link: Link
    values: tuple[Value, ...] = ()


def tree_of(nodes: Mapping[str, CostNode], order: Mapping[str, int]) -> CostNode:
    """Return the root of the tree of these nodes, by path; `order` has the number of the first call of each called one.

        tree_of({"": root, "embed": embed, "blocks": blocks, "blocks.0": block}, {"": 0, "embed": 1, "blocks.0": 2})

    Children are in the order of their first call; those without a call are last. A container that is never called
    itself, such as an `nn.ModuleList`, has the place of the first call inside it.
    """
    children: dict[str, list[str]] = defaultdict(list)
    for path in nodes:
        if path:
            children[path.rpartition(".")[0]].append(path)
    with_children: dict[str, CostNode] = {}
    first: dict[str, int] = {}
    # The path of a child is longer than that of its parent, so every child is complete before its parent. No recursion:
    # models nest deeper than Python's limit allows.
    for path in sorted(nodes, key=len, reverse=True):
        below = sorted(children[path], key=first.__getitem__)
        first[path] = min([order.get(path, len(order)), *(first[child] for child in below)])
        with_children[path] = msgspec.structs.replace(
            nodes[path], children=tuple(with_children[child] for child in below)
        )
    return with_children[""]


def to_text(tree: CostTree) -> str:
    """Return the tree as JSON; `parse` reads it back."""
    return msgspec.json.encode(tree).decode()


def parse(text: str | bytes) -> CostTree:
    """Return the tree that `to_text` wrote; raise `ParallelError` for any other text."""
    try:
        return msgspec.json.decode(text, type=CostTree)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParallelError(f"this is not a cost tree: {error}. Measure the model again to write a new one.") from error
