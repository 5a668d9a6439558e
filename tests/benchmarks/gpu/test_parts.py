"""The plan of the parts: names, time and commands."""

from __future__ import annotations

import pytest
from benchmarks.gpu.parts import PARTS, Part, UnknownPartError, allowance, chosen

from tests.conftest import DOCKER

ROOT = DOCKER.parents[1]
SHORT = [Part("a", 30, "a.py"), Part("b", 40, "b.py"), Part("c", 10, "c.py")]


def test_all_parts_fit_into_nine_minutes_and_have_a_program() -> None:
    assert sum(part.seconds for part in PARTS) <= 530
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part in PARTS:
        assert (ROOT / part.program).is_file()
        assert "cuda" in part.command(dry=False)
        assert "cpu" in part.command(dry=True)
        assert "cuda" not in part.command(dry=True)


def test_a_word_chooses_a_part_or_all_below_it() -> None:
    assert chosen([]) == PARTS
    assert [part.name for part in chosen(["tests/version-2", "throughput"])] == [
        "throughput/bert-large",
        "throughput/resnet50",
        "tests/version-2",
    ]
    with pytest.raises(UnknownPartError, match=r"--only through: no such part; there are quickstart, "):
        chosen(["sums", "through"])


@pytest.mark.parametrize(
    ("left", "index", "seconds"),
    [
        (80.0, 0, 30.0),
        # The time that is left over goes to the next part, and what later ones are guaranteed stays.
        (200.0, 0, 150.0),
        (75.0, 1, 65.0),
        (45.0, 2, 45.0),
        # Time is short: a part keeps its own, as far as there is any.
        (50.0, 1, 40.0),
        (20.0, 1, 20.0),
        (0.0, 2, 0.0),
        (-3.0, 2, 0.0),
    ],
)
def test_the_seconds_of_a_part(left: float, index: int, seconds: float) -> None:
    assert allowance(left, SHORT, index) == seconds
