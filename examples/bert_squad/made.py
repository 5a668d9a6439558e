"""Questions in SQuAD's form, made up: who keeps what where. For a first run, and where there is no SQuAD."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Ida")
THINGS = ("apples", "boats", "cats", "drums", "eggs", "flags")
PLACES = ("Athens", "Bonn", "Cairo", "Dublin", "Essen", "Faro")
# What stands before and after it, so that a context is longer than a window.
ASIDES = ("It rains today.", "The street is long and quiet.", "Nobody knows why.", "The clock is late again.")


def write(folder: Path, *, paragraphs: int, seed: int) -> None:
    """Write `made.json`: of each paragraph one fact among asides, and two of the three questions about it."""
    numbers = random.Random(seed)  # noqa: S311  no secret
    made = []
    for index in range(paragraphs):
        name, place = numbers.choice(NAMES), numbers.choice(PLACES)
        things = f"{numbers.randint(2, 30)} {numbers.choice(THINGS)}"
        asides = numbers.choices(ASIDES, k=4)
        cut = numbers.randint(0, len(asides))
        context = " ".join([*asides[:cut], f"{name} keeps {things} in {place}.", *asides[cut:]])
        questions = [("Who keeps them?", name), ("What is kept?", things), ("Where are they?", place)]
        asked = []
        for number, (text, right) in enumerate(numbers.sample(questions, 2)):
            answer = {"answer_start": context.index(right), "text": right}
            asked.append({"id": f"{index}-{number}", "question": text, "answers": [answer]})
        made.append({"context": context, "qas": asked})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "made.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "made", "paragraphs": made}]}))
