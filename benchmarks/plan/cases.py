"""The models of the benchmark: module, synthetic samples and loss. Sizes: `full` as published, `small` for tests.

    case = CASES["gpt2"]
    model = case.make("small")
    case.loss(model, default_collate([case.sample("small")] * 4)).backward()

Batches and sequences are short, because CPUs compute the steps. The models of Hugging Face need transformers, and Mask
R-CNN needs torchvision; both are imported when they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinds
import torch
from torch import Tensor, nn
from torch.nn import functional

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mask_rcnn" / "src"


@dataclass(frozen=True)
class Case:
    """One model: how to make it, one sample of its data, and the loss of a batch.

    `length` is the number of tokens or pixels of a side, by size.
    """

    make: Callable[[str], nn.Module]
    sample: Callable[[int], dict[str, Any]]
    loss: Callable[[nn.Module, dict[str, Any]], Tensor]
    length: dict[str, int]


def _bottleneck(inputs: int, width: int, stride: int) -> nn.Module:
    return _Residual(
        nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        ),
        nn.Identity()
        if stride == 1 and inputs == 4 * width
        else nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)),
    )  # fmt: skip


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.body(images) + self.shortcut(images))


def _resnet50(size: str) -> nn.Module:
    stages = (3, 4, 6, 3) if size == "full" else (1, 1, 1, 1)
    width = 64 if size == "full" else 16
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(_bottleneck(inputs, width << stage, stride))
            inputs = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class _Lstm(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embed(tokens)
        for layer in self.layers:
            states = functional.dropout(layer(states)[0], 0.1, self.training)
        return self.head(states)


def _lstm(size: str) -> nn.Module:
    return _Lstm(10_000, 650, 4) if size == "full" else _Lstm(1000, 128, 4)


def _transformers(kind: str, full: dict[str, Any], small: dict[str, Any]) -> Callable[[str], nn.Module]:
    def make(size: str) -> nn.Module:
        import transformers

        config, model = kind.split()
        return getattr(transformers, model)(getattr(transformers, config)(**(full if size == "full" else small)))

    return make


def _mask_rcnn(size: str) -> nn.Module:
    sys.path.insert(0, str(_EXAMPLE))
    import models  # type: ignore[import-not-found]  # that of the example

    return models.build("resnet50" if size == "full" else "small", 3)


def _image(side: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(3, side, side), "labels": torch.tensor(1)}


def _tokens(length: int) -> dict[str, Any]:
    tokens = torch.randint(0, 1000, (length,))
    return {"input_ids": tokens, "labels": tokens}


def _picture(side: int) -> dict[str, Any]:
    masks = torch.zeros(2, side, side, dtype=torch.uint8)
    masks[0, 4 : side // 2, 4 : side // 2] = masks[1, side // 3 : side - 4, side // 3 : side - 4] = 1
    boxes = torch.tensor([[4.0, 4, side // 2, side // 2], [side // 3, side // 3, side - 4, side - 4]])
    return {"images": torch.rand(3, side, side), "boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}


def _of_images(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(batch["pixel_values"]), batch["labels"])


def _of_words(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def _of_itself(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return model(**batch).loss


def _of_pictures(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    names = ("boxes", "labels", "masks")
    targets = [{name: batch[name][index] for name in names} for index in range(len(batch["images"]))]
    return sum(model(list(batch["images"]), targets).values())


_TEXT = {"full": 128, "small": 32}
_SMALL_BERT = {
    "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512,
}  # fmt: skip
_LARGE_BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_SMALL_GPT = {"vocab_size": 1000, "n_embd": 128, "n_layer": 4, "n_head": 4}
_LLAMA = {
    "vocab_size": 32_000, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 2048,
}  # fmt: skip
_LLAMA_7B = {
    "vocab_size": 32_000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11_008,
}  # fmt: skip
_SMALL_LLAMA = {**_LLAMA, "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
_SMALL_T5 = {"vocab_size": 1000, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 4}
_SMALL_VIT = {**_SMALL_BERT, "image_size": 64, "patch_size": 16}

# Models of other kinds, of one size.
KINDS = (*("gru-attention", "depthwise", "recomputed", "mixture", "encoder-decoder", "sampled", "bags", "scanned"),)
# Models that are measured, and that no machine of ours can train.
ONLY_MEASURED = ("llama-7b",)

CASES: dict[str, Case] = {
    "resnet50": Case(_resnet50, _image, _of_images, {"full": 96, "small": 64}),
    "bert-large": Case(
        _transformers("BertConfig BertForMaskedLM", _LARGE_BERT, _SMALL_BERT), _tokens, _of_itself, _TEXT
    ),
    "gpt2": Case(_transformers("GPT2Config GPT2LMHeadModel", {}, _SMALL_GPT), _tokens, _of_itself, _TEXT),
    "gpt2-medium": Case(
        _transformers(
            "GPT2Config GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}, {**_SMALL_GPT, "n_layer": 6}
        ),
        _tokens,
        _of_itself,
        _TEXT,
    ),
    "llama-125m": Case(_transformers("LlamaConfig LlamaForCausalLM", _LLAMA, _SMALL_LLAMA), _tokens, _of_itself, _TEXT),
    "llama-7b": Case(
        _transformers("LlamaConfig LlamaForCausalLM", _LLAMA_7B, _SMALL_LLAMA), _tokens, _of_itself, _TEXT
    ),
    "t5-small": Case(
        _transformers(
            "T5Config T5ForConditionalGeneration",
            {"decoder_start_token_id": 0},
            {**_SMALL_T5, "decoder_start_token_id": 0},
        ),
        _tokens,
        _of_itself,
        _TEXT,
    ),
    "vit": Case(
        _transformers("ViTConfig ViTForImageClassification", {}, _SMALL_VIT),
        _image,
        _of_itself,
        {"full": 224, "small": 64},
    ),
    "lstm": Case(_lstm, _tokens, _of_words, _TEXT),
    "gru-attention": Case(lambda _: kinds.GruAttention(), kinds.words, _of_words, _TEXT),
    "depthwise": Case(lambda _: kinds.Depthwise(), _image, _of_images, {"full": 96, "small": 64}),
    "recomputed": Case(lambda _: kinds.Recomputed(), kinds.words, _of_words, _TEXT),
    "mixture": Case(lambda _: kinds.Mixture(), kinds.words, _of_words, _TEXT),
    "encoder-decoder": Case(lambda _: kinds.EncoderDecoder(), kinds.words, _of_words, _TEXT),
    "sampled": Case(lambda _: kinds.Sampled(), _image, kinds.of_samples, {"full": 64, "small": 64}),
    "bags": Case(lambda _: kinds.Bags(), kinds.bag, kinds.of_bags, _TEXT),
    "scanned": Case(lambda _: kinds.Scanned(), kinds.words, _of_words, _TEXT),
    "unet": Case(lambda _: kinds.UNet(), _image, _of_images, {"full": 96, "small": 64}),
    "state-space": Case(lambda _: kinds.StateSpace(), kinds.words, _of_words, _TEXT),
    "mask-rcnn": Case(_mask_rcnn, _picture, _of_pictures, {"full": 256, "small": 64}),
}
