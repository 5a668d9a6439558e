"""examples/bert_squad: reading, scoring by the official rules, windows, and the best answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Load = Callable[[str, str], ModuleType]
# A folder next to the repository, which need not exist.
XQUAD = next((up / "shared/data/xquad" for up in Path(__file__).parents if (up / "shared/data/xquad").is_dir()), None)


@pytest.fixture
def squad(module: Load) -> ModuleType:
    return module("bert_squad/shared", "squad")


@pytest.fixture
def scoring(module: Load) -> ModuleType:
    return module("bert_squad/shared", "scoring")


@pytest.fixture
def windows(module: Load) -> ModuleType:
    return module("bert_squad/shared", "windows")


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the Denver Broncos.", ["Denver Broncos"], 1, 1),
        ("DENVER  broncos", ["The Denver Broncos!"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("Broncos Denver", ["Denver Broncos"], 0, 1),
        ("a big Denver Denver", ["Denver Broncos"], 0, 0.4),
        ("Panthers", ["Denver Broncos"], 0, 0),
        ("Panthers", ["Denver Broncos", "the Panthers"], 1, 1),
        ("theatre", ["atre"], 0, 0),
        ("", ["Denver"], 0, 0),
        ("1,000", ["1000"], 1, 1),
    ],
)
def test_official_rules(scoring: ModuleType, predicted: str, answers: list[str], exact: float, f1: float) -> None:
    assert scoring.exact_match(predicted, answers) == exact
    assert scoring.f1(predicted, answers) == pytest.approx(f1)


def file(folder: Path, **changed: Any) -> Path:
    answer = {"answer_start": 4, "text": "7 apples", **changed.pop("answer", {})}
    item = {"id": "1", "question": "What?", "answers": [answer], **changed.pop("qas", {})}
    paragraph = {"context": "Ben 7 apples", "qas": [item], **changed}
    folder.joinpath("a.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return folder


def test_a_question_is_read(tmp_path: Path, squad: ModuleType) -> None:
    (question,) = squad.read(file(tmp_path))
    assert (question.id, question.context, question.answers) == ("1", "Ben 7 apples", ((4, "7 apples"),))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"answer": {"answer_start": 5}},
            r"a.json: data\[0\].paragraphs\[0\].qas\[0\].answers\[0\]: '7 apples' is not",
        ),
        ({"answer": {"answer_start": 99}}, "from character 99 on: ''"),
        ({"answer": {"text": 7}}, r"answers\[0\].text is missing, or is not of type str"),
        ({"qas": {"answers": []}}, r"qas\[0\].answers is empty"),
        ({"qas": {"question": None}}, r"qas\[0\].question is missing, or is not of type str"),
        ({"context": None}, r"data\[0\].paragraphs\[0\].context is missing"),
    ],
)
def test_data_that_is_wrong_is_named(tmp_path: Path, squad: ModuleType, changed: Any, message: str) -> None:
    with pytest.raises(squad.DataError, match=message):
        squad.read(file(tmp_path, **changed))


def test_an_empty_split_and_no_json_are_named(tmp_path: Path, squad: ModuleType) -> None:
    with pytest.raises(squad.DataError, match="no questions"):
        squad.read(tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(squad.DataError, match=r"a.json is not JSON"):
        squad.read(tmp_path)


def context(count: int) -> list[tuple[int, int, int]]:
    """Return tokens of one character each, with a blank between them."""
    return [(10 + index, 2 * index, 2 * index + 1) for index in range(count)]


def test_a_long_context_is_cut_by_the_stride(windows: ModuleType) -> None:
    marks = windows.Marks(pad=0, cls=2, sep=3, mask=4, unknown=1)
    parts = windows.cut([(5, 0, 3)], context(7), (8, 11), marks=marks, length=8, stride=2, query=4)
    assert [window.tokens for window in parts] == [
        [2, 5, 3, 10, 11, 12, 13, 3],
        [2, 5, 3, 12, 13, 14, 15, 3],
        [2, 5, 3, 14, 15, 16, 3, 0],
    ]
    assert parts[0].kinds == [0, 0, 0, 1, 1, 1, 1, 1]
    # The answer is the fifth and sixth token: the second and third window have both tokens, the first one has not.
    assert [(window.begin, window.end) for window in parts] == [(0, 0), (5, 6), (3, 4)]


def test_the_best_answer_lies_in_any_window(windows: ModuleType) -> None:
    text = "a b c d e f g"
    marks = windows.Marks(pad=0, cls=2, sep=3, mask=4, unknown=1)
    first, second = windows.cut([(5, 0, 3)], context(6), (0, 1), marks=marks, length=8, stride=2, query=4)
    low = [0.0] * 8

    def high(**scores: float) -> list[float]:
        return [scores.get(f"at{index}", 0.0) for index in range(8)]

    def answer(*scored: Any, n_best: int = 3, longest: int = 3) -> str:
        return windows.best(scored, text, n_best=n_best, longest=longest)

    assert answer((first, high(at4=2), high(at5=2)), (second, low, low)) == "b c"
    assert answer((first, high(at4=2), high(at5=2)), (second, high(at6=5), high(at6=5))) == "f"
    # These are ignored: an end before its begin, an answer that is too long, and scores of the question's tokens.
    assert answer((first, high(at5=5), high(at3=5, at6=1))) == "c d"
    assert answer((first, high(at3=5), high(at6=5, at4=1)), longest=2) == "a b"
    assert answer((first, high(at1=9, at3=1), high(at1=9, at3=1))) == "a"


def test_xquad_is_read_whole_and_its_own_answers_score_1(squad: ModuleType, scoring: ModuleType) -> None:
    if XQUAD is None:
        pytest.skip("XQuAD is missing: put it into shared/data/xquad next to the repository")
    questions = squad.read(XQUAD)
    assert len(questions) == 1190
    for question in questions:
        texts = [text for _, text in question.answers]
        assert (scoring.exact_match(texts[0], texts), scoring.f1(texts[0], texts)) == (1, 1)
