"""examples/bert_pretrain: documents from text, pairs of them, hidden words, and the settings of two phases."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def documents(module: Load) -> ModuleType:
    return module("bert_pretrain/shared", "documents")


@pytest.fixture
def pairs(module: Load) -> ModuleType:
    return module("bert_pretrain/shared", "pairs")


def test_a_sentence_a_line_and_documents_between_empty_ones(tmp_path: Path, documents: ModuleType) -> None:
    (tmp_path / "b.txt").write_text("\n\nOne.\n  Two. \n\n \nThree.")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.txt").write_text("Four.\n")
    (tmp_path / "notes.md").write_text("no text of the channel")
    assert documents.read(tmp_path) == [["Four."], ["One.", "Two."], ["Three."]]


def test_text_that_is_wrong_is_named(tmp_path: Path, documents: ModuleType) -> None:
    with pytest.raises(documents.DataError, match=r"0 documents in 0 .txt files"):
        documents.read(tmp_path)
    (tmp_path / "a.txt").write_text("One.\nTwo.")
    with pytest.raises(documents.DataError, match=r"1 documents in 1 .txt files. At least two are needed"):
        documents.read(tmp_path)
    (tmp_path / "b.txt").write_bytes("One.\n\nZw\u00f6lf.".encode("latin-1"))
    with pytest.raises(documents.DataError, match=r"b.txt, line 3: byte 3 is not UTF-8: .*; convert the file"):
        documents.read(tmp_path)


def corpus(pairs: ModuleType, *documents: list[int]):
    """Build documents from the sizes of their sentences. Token n is the n-th of all."""
    result, count = pairs.Corpus(), 0
    for sizes in documents:
        ends = [count + sum(sizes[: index + 1]) for index in range(len(sizes))]
        result.add([list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)])
        count += sum(sizes)
    return result


def test_a_corpus_leaves_out_what_has_no_token(pairs: ModuleType) -> None:
    texts = corpus(pairs, [2, 0, 1], [], [0], [3])
    assert (list(texts.tokens), list(texts.sentences), list(texts.documents)) == (
        [0, 1, 2, 3, 4, 5],
        [0, 2, 3, 6],
        [0, 2, 3],
    )


def test_pairs_follow_or_come_from_another_document(pairs: ModuleType) -> None:
    numbers = random.Random(1)
    texts = corpus(pairs, *([numbers.randint(1, 9) for _ in range(numbers.randint(1, 12))] for _ in range(60)))
    starts = [texts.sentences[sentence] for sentence in texts.documents]

    def document(token: int) -> int:
        return sum(start <= token for start in starts)

    result = pairs.pair_up(texts, length=16, seed=3)
    assert result == pairs.pair_up(texts, length=16, seed=3) != pairs.pair_up(texts, length=16, seed=4)
    for pair in result:
        first, second = pair.first_end - pair.first, pair.second_end - pair.second
        assert min(first, second) >= 1
        assert first + second <= 13
        assert document(pair.first) == document(pair.first_end - 1)
        assert document(pair.second) == document(pair.second_end - 1)
        assert pair.follows == (pair.first_end == pair.second) == (document(pair.first) == document(pair.second))
    assert 0.25 < sum(pair.follows for pair in result) / len(result) < 0.5


def test_a_pair_keeps_what_is_next_to_where_its_texts_meet(pairs: ModuleType) -> None:
    texts = corpus(pairs, [20, 20], [2])
    first = next(pair for pair in pairs.pair_up(texts, length=13, seed=1) if pair.first_end == 20)
    assert (first.first, first.second_end - first.second) in ((15, 5), (12, 2))
    with pytest.raises(ValueError, match="pairs need a length of at least 5 and at least 2 documents, not 4 and 2"):
        pairs.pair_up(texts, length=4, seed=1)
    with pytest.raises(ValueError, match="not 16 and 1"):
        pairs.pair_up(corpus(pairs, [3, 3]), length=16, seed=1)


def test_words_are_hidden_and_marks_are_not(pairs: ModuleType, module: Load) -> None:
    marks = module("bert_pretrain/shared", "common.tokens").Marks(pad=0, cls=1, sep=2, mask=3, unknown=4)
    texts = pairs.Corpus()
    texts.add([[5, 6, 7, 4, 8], [4, 9]])
    pair = pairs.Pair(0, 5, 5, 7, True)
    hidden, counts = set(), {"mask": 0, "random": 0, "same": 0}
    for seed in range(400):
        example = pairs.example(texts, pair, marks=marks, vocabulary=1000, length=12, numbers=random.Random(seed))
        ((index, token),) = [(index, label) for index, label in enumerate(example.labels) if label != pairs.SHOWN]
        plain = [1, 5, 6, 7, 4, 8, 2, 4, 9, 2, 0, 0]
        assert example.tokens[:index] + example.tokens[index + 1 :] == plain[:index] + plain[index + 1 :]
        assert (example.kinds, example.used, example.follows) == ([0] * 7 + [1] * 3 + [0] * 2, 10, True)
        assert token == plain[index]
        hidden.add(token)
        counts[
            "mask" if example.tokens[index] == marks.mask else "same" if example.tokens[index] == token else "random"
        ] += 1
    assert hidden == {5, 6, 7, 8, 9}
    assert 290 <= counts["mask"] <= 350
    assert min(counts["random"], counts["same"]) >= 20


def test_where_the_vocabulary_knows_no_word_one_is_hidden_all_the_same(pairs: ModuleType, module: Load) -> None:
    marks = module("bert_pretrain/shared", "common.tokens").Marks(pad=0, cls=1, sep=2, mask=3, unknown=4)
    texts = pairs.Corpus()
    texts.add([[4], [4]])
    example = pairs.example(
        texts, pairs.Pair(0, 1, 1, 2, True), marks=marks, vocabulary=9, length=8, numbers=random.Random(1)
    )
    assert sorted(example.labels)[-1] == marks.unknown


def test_the_second_phase_has_smaller_batches_and_as_many_parts(module: Load) -> None:
    train = module("bert_pretrain/shared", "task")
    arguments = ["--global-batch=64", "--rank-batch=8", "--length=16", "--lr=0.01", "--long-length=32"]
    (only,) = train.phases_of(train.parse(arguments))
    assert (only.length, only.global_batch) == (16, 64)
    _, long = train.phases_of(train.parse([*arguments, "--long-epochs=2", "--long-rank-batch=2", "--long-lr=0.004"]))
    assert (long.length, long.epochs, long.rank_batch, long.global_batch, long.lr) == (32, 2, 2, 16, 0.004)
    with pytest.raises(ValueError, match="is not a whole number of pairs"):
        train.phases_of(train.parse([*arguments, "--rank-batch=6", "--long-epochs=1", "--long-rank-batch=1"]))


def test_pythons_help_becomes_documents(tmp_path: Path, module: Load, documents: ModuleType) -> None:
    topics = module("bert_pretrain", "topics")
    text = "Lists\n*****\n\nA list is\nmutable.  It grows.\n\n   x = [1]\n"
    assert topics.sentences(text) == ["Lists", "A list is mutable.", "It grows.", "x = [1]"]
    topics.write(tmp_path)
    train, test = (documents.read(tmp_path / split) for split in ("train", "test"))
    assert len(train) > 3 * len(test) > 30
    assert all(len(document) > 1 for document in train)
