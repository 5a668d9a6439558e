"""Builds cost trees of known models from their published architectures, without a framework or a measurement.

Times are operations divided by a device's sustained rate; bytes are those of fp32. A rank holds 16 bytes per parameter:
weight, gradient and Adam's two moments. A backward takes twice the forward. Sources: He et al. 2015, table 1
(ResNet-50); Devlin et al. 2018, section 3 (BERT-large); Radford et al. 2019, table 2 (GPT-2, 1.5 B parameters).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value

# A V100-like device in fp32, and one NVLink 2 between two of them, as in the machines of SMP v1's time.
OPERATIONS_PER_SECOND = 10e12
LINK = Link(seconds=20e-6, bytes_per_second=25e9)
BYTES_PER_PARAMETER = 16
FLOAT = 4
LIVE_MICROBATCHES = 4


@dataclass
class Builder:
    """Collects modules and the values between them; paths are dotted, and parents are created as needed."""

    _users: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _nodes: dict[str, CostNode] = field(default_factory=dict)

    def module(self, path: str, parameters: int, operations: float, inputs: int, outputs: int, shared: int = 0) -> str:
        """Add a module with its parameters, forward operations, and elements of input and output; return its path."""
        identity = shared or len(self._nodes) + 1_000
        self._nodes[path] = CostNode(
            path=path,
            parameters={identity: parameters * BYTES_PER_PARAMETER} if parameters else {},
            activation_bytes=outputs * FLOAT * LIVE_MICROBATCHES,
            seconds=3 * operations / OPERATIONS_PER_SECOND,
            input_bytes=inputs * FLOAT,
        )
        return path

    def value(self, source: str, user: str, elements: int) -> None:
        """Add a user of the output of `source`; all users of one output share one value, as in the runtime."""
        self._users.setdefault((source, elements * FLOAT), []).append(user)

    def tree(self) -> CostTree:
        values = tuple(
            Value(source=source, users=tuple(users), forward_bytes=size, backward_bytes=size)
            for (source, size), users in self._users.items()
        )
        return CostTree(root=self._node(""), link=LINK, values=values)

    def _node(self, path: str) -> CostNode:
        below = f"{path}." if path else ""
        names: dict[str, None] = {}
        for other in self._nodes:
            if other.startswith(below) and other != path:
                names[other[len(below) :].partition(".")[0]] = None
        children = tuple(self._node(below + name) for name in names)
        node = self._nodes.get(path)
        if node is None:
            return CostNode(path=path, children=children)
        return CostNode(
            **{name: getattr(node, name) for name in node.__struct_fields__ if name != "children"}, children=children
        )


def resnet50(batch: int = 32) -> CostTree:
    """53 convolutions in 16 residual blocks, each with its normalisation; 224 x 224 images."""
    build = Builder()

    def conv(path: str, source: str | None, output: tuple[int, int], source_shape: tuple[int, int], kernel: int) -> str:
        """Add a convolution and its normalisation; `output` and `source_shape` are (channels, width of the image)."""
        (channels, width), (inputs, before) = output, source_shape
        weights, elements = channels * inputs * kernel**2, batch * channels * width**2
        build.module(path, weights, 2.0 * weights * batch * width**2, batch * inputs * before**2, elements)
        norm = build.module(path.replace("conv", "bn"), 4 * channels, 10.0 * elements, elements, elements)
        build.value(path, norm, elements=elements)
        if source is not None:
            build.value(source, path, elements=batch * inputs * before**2)
        return norm

    last, channels, width = conv("conv1", None, (64, 112), (3, 224), 7), 64, 56
    for stage, (planes, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
        for block in range(blocks):
            path, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            block_input, after = (channels, width), width // stride
            first = conv(f"{path}.conv1", last, (planes, width), block_input, 1)
            second = conv(f"{path}.conv2", first, (planes, after), (planes, width), 3)
            third = conv(f"{path}.conv3", second, (4 * planes, after), (planes, after), 1)
            skip = last
            if block == 0:
                skip = conv(f"{path}.downsample.conv", last, (4 * planes, after), block_input, 1)
            # The addition runs where the block's last normalisation is.
            build.value(skip, third, elements=batch * 4 * planes * after**2)
            last, channels, width = third, 4 * planes, after
    build.module("fc", 2048 * 1000, 2.0 * batch * 2048 * 1000, batch * 2048, batch * 1000)
    build.value(last, "fc", elements=batch * 2048)
    return build.tree()


def transformer(layers: int, width: int, vocabulary: int, tokens: int, batch: int, tied: bool = True) -> CostTree:
    """Token and position embeddings, layers of attention and feed-forward, and a head tied to the embedding or not."""
    build = Builder()
    elements, positions = batch * tokens * width, batch * tokens

    def linear(path: str, out: int, inputs: int, source: str, extra: float = 0.0) -> str:
        operations = 2.0 * positions * inputs * out + extra
        build.module(path, inputs * out + out, operations, positions * inputs, positions * out)
        build.value(source, path, elements=positions * inputs)
        return path

    def norm(path: str, *sources: str) -> str:
        build.module(path, 2 * width, 10.0 * elements, elements, elements)
        for source in sources:
            build.value(source, path, elements=elements)
        return path

    build.module("embeddings.token", vocabulary * width, elements, positions, elements, shared=1)
    build.module("embeddings.position", tokens * width, elements, tokens, elements)
    last = norm("embeddings.norm", "embeddings.token", "embeddings.position")
    for layer in range(layers):
        path = f"layers.{layer}"
        query, key, value = (
            linear(f"{path}.attention.{name}", width, width, last) for name in ("query", "key", "value")
        )
        scores = 4.0 * batch * tokens**2 * width
        out = linear(f"{path}.attention.out", width, width, value, extra=scores)
        for source in (query, key):
            build.value(source, out, elements=elements)
        attended = norm(f"{path}.attention.norm", out, last)
        wide = linear(f"{path}.feed_forward.up", 4 * width, width, attended)
        narrow = linear(f"{path}.feed_forward.down", width, 4 * width, wide)
        last = norm(f"{path}.feed_forward.norm", narrow, attended)
    build.module(
        "head",
        vocabulary * width,
        2.0 * positions * width * vocabulary,
        elements,
        positions * vocabulary,
        shared=1 if tied else 2,
    )
    build.value(last, "head", elements=elements)
    return build.tree()


def bert_large(batch: int = 16) -> CostTree:
    return transformer(layers=24, width=1024, vocabulary=30_522, tokens=512, batch=batch)


def gpt2(batch: int = 4) -> CostTree:
    return transformer(layers=48, width=1600, vocabulary=50_257, tokens=1_024, batch=batch)


def thousand_modules() -> CostTree:
    """A BERT-shaped model of about a thousand modules with parameters."""
    return transformer(layers=124, width=512, vocabulary=30_522, tokens=256, batch=8)
