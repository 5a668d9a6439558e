"""Weights of a published BERT for frameworks other than PyTorch, by HuggingFace's names.

bert.embeddings.word_embeddings.weight, bert.encoder.layer.0.attention.self.query.weight, qa_outputs.weight, ...
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.data import DataError
from common.tokens import huggingface

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
# Settings of BERT's configuration that change the computation, with the only value that our encoders compute.
_COMPUTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


@dataclass(frozen=True)
class Pretrained:
    """The configuration and the weights of a model, in fp32, by HuggingFace's names of BERT's weights."""

    config: dict[str, Any]
    weights: dict[str, Any]

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the arguments of an encoder, with their names in our encoders."""
        names = {
            "vocabulary": "vocab_size", "length": "max_position_embeddings", "width": "hidden_size",
            "depth": "num_hidden_layers", "heads": "num_attention_heads", "inner": "intermediate_size",
            "dropout": "hidden_dropout_prob", "epsilon": "layer_norm_eps",
        }  # fmt: skip
        return {name: self.config[key] for name, key in names.items()}


def read(setting: str, name: str) -> Pretrained:
    """Read `config.json` and `model.safetensors` of a folder, or of HuggingFace's model of that name.

        pretrained = read("pretrained", "bert-base-uncased")
        encoder = Encoder(**pretrained.sizes)

    Raises `DataError` for a model that is no BERT, or one with other settings than our encoders compute.
    """
    files = [_file(setting, name, file) for file in ("config.json", "model.safetensors")]
    config = json.loads(files[0].read_text(encoding="utf-8"))
    for key, value in _COMPUTED.items():
        if config.get(key, value) != value:
            raise DataError(f"--{setting} {name}: its {key} is {config[key]!r}; this framework's example has {value!r}")
    return Pretrained(config, {_published(key): value for key, value in tensors(files[1]).items()})


def _file(setting: str, name: str, file: str) -> Path:
    if Path(name).is_dir():
        path = Path(name, file)
        if not path.is_file():
            raise DataError(f"--{setting} {name}: the folder has no {file}; `save_pretrained` writes it")
        return path
    return Path(huggingface(setting, name).utils.cached_file(name, file))


def _published(name: str) -> str:
    """Return today's name of a weight: the oldest models say gamma and beta, and a bare encoder has no `bert.`."""
    name = re.sub(r"LayerNorm\.(gamma|beta)$", lambda match: f"LayerNorm.{_NORM[match.group(1)]}", name)
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


_NORM = {"gamma": "weight", "beta": "bias"}


def tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a .safetensors file; floating point as fp32.

    The file begins with the size of a JSON header in 8 bytes. The header has the type, the shape and the range of bytes
    of each tensor. Raises `DataError` if the file is damaged.
    """
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        return {name: _tensor(content, 8 + size, entry) for name, entry in header.items()}
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} is no .safetensors file, or is damaged: {error!r}") from None


def _tensor(content: bytes, start: int, entry: dict[str, Any]) -> Any:
    begin, end = (start + offset for offset in entry["data_offsets"])
    array = np.frombuffer(content[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    if entry["dtype"] == "BF16":
        # bf16 is the upper half of fp32.
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if entry["dtype"].startswith("F") else array


def fitting(pretrained: Pretrained, shapes: dict[str, tuple[int, ...]], *, heads: tuple[str, ...]) -> dict[str, Any]:
    """Return the weights of a model whose weights have these names and HuggingFace's shapes.

    Weights whose names begin with one of `heads` may be missing: the model keeps its random ones. Raises `DataError`
    for another missing weight, and for one of another shape.
    """
    result = {}
    for name, shape in shapes.items():
        if name in pretrained.weights:
            if pretrained.weights[name].shape != shape:
                raise DataError(f"{name} has the shape {pretrained.weights[name].shape} instead of {shape}")
            result[name] = pretrained.weights[name]
        elif not name.startswith(heads):
            raise DataError(f"{name} is missing in the model's weights: it is no BERT, or is stored in several files")
    return result
