"""Tokenizers: words of the training text, or a tokenizer of HuggingFace by name or path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

# A token: its number, the offset of its first character, and the offset behind its last one.
Token = tuple[int, int, int]


class Marks(NamedTuple):
    """The numbers of a vocabulary's special tokens. `unknown` is the token of words that the vocabulary lacks."""

    pad: int
    cls: int
    sep: int
    mask: int
    unknown: int


class Tokenizer(Protocol):
    """Cuts a text into tokens. `marks` are the special tokens; `size` is the number of tokens of the vocabulary."""

    marks: Marks
    size: int

    def __call__(self, text: str) -> list[Token]: ...


_WORD = re.compile(r"\w+|[^\w\s]")


class Words:
    """Lower-case words and single punctuation marks. The most common ones of the training text have numbers."""

    marks = Marks(pad=0, cls=1, sep=2, mask=3, unknown=4)

    def __init__(self, texts: Iterable[str], size: int) -> None:
        counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
        # Sorted by word too: ranks must number equally common words alike.
        common = sorted(counts, key=lambda word: (-counts[word], word))[: size - len(self.marks)]
        self._numbers = {word: number for number, word in enumerate(common, len(self.marks))}
        self.size = size

    def __call__(self, text: str) -> list[Token]:
        matches = _WORD.finditer(text)
        return [(self._numbers.get(match.group().lower(), self.marks.unknown), *match.span()) for match in matches]


class PretrainedWords:
    """A fast tokenizer of HuggingFace, which reports the offsets of its tokens in the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.marks = Marks(*(getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "cls", "sep", "mask", "unk")))
        self.size = len(tokenizer)

    def __call__(self, text: str) -> list[Token]:
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
        return [(number, *span) for number, span in pairs]


def huggingface(setting: str, name: str) -> Any:
    """Import HuggingFace's library for `--SETTING NAME`. Raises `ModuleNotFoundError` if it is not installed."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"--{setting} {name} needs HuggingFace's library: list `transformers` in requirements.txt, or omit"
            f" --{setting}"
        ) from None
    return transformers


def tokenizer_of(setting: str, name: str) -> PretrainedWords:
    """Load a tokenizer by its name or path."""
    return PretrainedWords(huggingface(setting, name).AutoTokenizer.from_pretrained(name, use_fast=True))
