"""Generated questions in SQuAD's format: who keeps what where. They serve for a first run without SQuAD."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Ida")
THINGS = ("apples", "boats", "cats", "drums", "eggs", "flags")
CITIES = ("Athens", "Bonn", "Cairo", "Dublin", "Essen", "Faro")
# Sentences around the fact, so that a context is longer than a window.
FILLERS = ("It rains today.", "The street is long and quiet.", "Nobody knows why.", "The clock is late again.")


def write(folder: Path, *, paragraphs: int, seed: int) -> None:
    """Write `questions.json`. Each paragraph has one fact among fillers, and two of three questions about the fact."""
    numbers = random.Random(seed)  # noqa: S311  no secret
    entries = []
    for index in range(paragraphs):
        name, city = numbers.choice(NAMES), numbers.choice(CITIES)
        things = f"{numbers.randint(2, 30)} {numbers.choice(THINGS)}"
        fillers = numbers.choices(FILLERS, k=4)
        cut = numbers.randint(0, len(fillers))
        context = " ".join([*fillers[:cut], f"{name} keeps {things} in {city}.", *fillers[cut:]])
        questions = [("Who keeps them?", name), ("What is kept?", things), ("Where are they?", city)]
        selected = []
        for number, (text, right) in enumerate(numbers.sample(questions, 2)):
            answer = {"answer_start": context.index(right), "text": right}
            selected.append({"id": f"{index}-{number}", "question": text, "answers": [answer]})
        entries.append({"context": context, "qas": selected})
    folder.mkdir(parents=True, exist_ok=True)
    content = {"version": "1.1", "data": [{"title": "generated", "paragraphs": entries}]}
    (folder / "questions.json").write_text(json.dumps(content))
