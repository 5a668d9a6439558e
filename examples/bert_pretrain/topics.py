"""The texts of Python's help as documents. Every installation of Python has them, so they serve for a first run."""

from __future__ import annotations

import re
from pathlib import Path
from pydoc_data.topics import topics

_END = re.compile(r"(?<=[.!?:])\s+(?=[\"'(*A-Z])")


def write(folder: Path) -> None:
    """Write `train/<topic>.txt`, or `test/<topic>.txt` for every fifth topic, with one sentence per line."""
    for number, (name, text) in enumerate(sorted(topics.items())):
        path = folder / ("test" if number % 5 == 0 else "train") / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(sentences(text)) + "\n", encoding="utf-8")


def sentences(text: str) -> list[str]:
    """Return a topic's sentences.

    >>> sentences("Lists\\n*****\\n\\nA list is\\nmutable.  It grows.\\n\\n   x = [1]\\n")
    ['Lists', 'A list is mutable.', 'It grows.', 'x = [1]']
    """
    underlined = re.sub(r"^[*=\-~^]{3,}$", "", text, flags=re.MULTILINE)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", underlined))
    return [sentence for paragraph in paragraphs if paragraph for sentence in _END.split(paragraph)]
