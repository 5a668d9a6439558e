"""Texts as numbers: a vocabulary made from them, or that of HuggingFace's tokenizer by name or path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

# A token: its number, and the characters that it stands for, from the first one to the one behind the last.
Token = tuple[int, int, int]


class Marks(NamedTuple):
    """The numbers of a vocabulary's tokens that stand for no text, and of the one for words that it has not."""

    pad: int
    cls: int
    sep: int
    mask: int
    unknown: int


class Tokenizer(Protocol):
    """Cuts a text into tokens; `marks` are its vocabulary's, `size` is how many tokens that has."""

    marks: Marks
    size: int

    def __call__(self, text: str) -> list[Token]: ...


_WORD = re.compile(r"\w+|[^\w\s]")


class Words:
    """Words and single signs, lower case; the commonest of the training text have a number."""

    marks = Marks(pad=0, cls=1, sep=2, mask=3, unknown=4)

    def __init__(self, texts: Iterable[str], size: int) -> None:
        counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
        # The same numbers on every rank, also where words are equally common.
        common = sorted(counts, key=lambda word: (-counts[word], word))[: size - len(self.marks)]
        self._numbers = {word: number for number, word in enumerate(common, len(self.marks))}
        self.size = size

    def __call__(self, text: str) -> list[Token]:
        found = _WORD.finditer(text)
        return [(self._numbers.get(each.group().lower(), self.marks.unknown), *each.span()) for each in found]


class PretrainedWords:
    """HuggingFace's tokenizer, which knows where in the text its tokens lie."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.marks = Marks(*(getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "cls", "sep", "mask", "unk")))
        self.size = len(tokenizer)

    def __call__(self, text: str) -> list[Token]:
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(number, *span) for number, span in zip(found["input_ids"], found["offset_mapping"], strict=True)]


def huggingface(setting: str, name: str) -> Any:
    """Return HuggingFace's library, which `--SETTING NAME` needs. Raises `ModuleNotFoundError` without it."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"--{setting} {name} needs HuggingFace's library: list `transformers` in requirements.txt, or leave it out"
        ) from None
    return transformers


def tokenizer_of(setting: str, name: str) -> PretrainedWords:
    """Load a tokenizer by its name or path."""
    return PretrainedWords(huggingface(setting, name).AutoTokenizer.from_pretrained(name, use_fast=True))
