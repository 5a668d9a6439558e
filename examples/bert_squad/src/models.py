"""A tokenizer and a model: small ones from scratch, or HuggingFace's by name or path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from windows import Marks, Token

_WORD = re.compile(r"\w+|[^\w\s]")
_MARKS = Marks(pad=0, cls=1, sep=2)
_UNKNOWN, _FIRST = 3, 4


class Tokenizer(Protocol):
    """Cuts a text into tokens; `marks` are its vocabulary's."""

    marks: Marks

    def __call__(self, text: str) -> list[Token]: ...


class Words:
    """Words and single signs, lower case; the commonest of the training text have a number."""

    marks = _MARKS

    def __init__(self, texts: Iterable[str], size: int) -> None:
        counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
        # The same numbers on every rank, also where words are equally common.
        common = sorted(counts, key=lambda word: (-counts[word], word))[: size - _FIRST]
        self._numbers = {word: number for number, word in enumerate(common, _FIRST)}

    def __call__(self, text: str) -> list[Token]:
        found = _WORD.finditer(text)
        return [(self._numbers.get(each.group().lower(), _UNKNOWN), *each.span()) for each in found]


class Bert(nn.Module):
    """An encoder with two scores for each token: that an answer begins, and that it ends there. No dropout."""

    def __init__(self, *, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.places, self.norm = nn.Embedding(length, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.scores = nn.Linear(width, 2)
        for each in (self.tokens, self.kinds, self.places):
            nn.init.normal_(each.weight, std=0.02)

    def forward(
        self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.tokens(tokens) + self.kinds(kinds) + self.places.weight[: tokens.shape[1]]
        begins, ends = self.scores(self.encoder(self.norm(states), src_key_padding_mask=~mask)).unbind(dim=-1)
        return begins, ends


class _Pretrained(nn.Module):
    """HuggingFace's model with the arguments and answers of the one above."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        answer = self.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        return answer.start_logits, answer.end_logits


class _PretrainedWords:
    """HuggingFace's tokenizer, which knows where in the text its tokens lie."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.marks = Marks(tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)

    def __call__(self, text: str) -> list[Token]:
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(number, *span) for number, span in zip(found["input_ids"], found["offset_mapping"], strict=True)]


def pretrained(name: str) -> tuple[Tokenizer, nn.Module]:
    """Load a BERT and its tokenizer. Raises `ModuleNotFoundError` without HuggingFace's library."""
    try:
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"--pretrained {name} needs HuggingFace's library: list `transformers` in requirements.txt, or leave it out"
        ) from None
    tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
    return _PretrainedWords(tokenizer), _Pretrained(AutoModelForQuestionAnswering.from_pretrained(name))
