"""Documents from text files with one sentence per line. An empty line or the end of the file ends a document.

notes.txt:  The first sentence of a document.
            The second one.

            Another document begins.
"""

from __future__ import annotations

from pathlib import Path

from common.data import DataError

Document = list[str]


def read(folder: Path) -> list[Document]:
    """Read all .txt files of a channel. Raises `DataError` if a file is not UTF-8, or for fewer than two documents."""
    files = sorted(folder.rglob("*.txt"))
    documents = [document for path in files for document in _in_file(path)]
    if len(documents) < 2:
        raise DataError(
            f"{folder}: {len(documents)} documents in {len(files)} .txt files. At least two are needed, because half of"
            " the pairs combine two documents. End each document with an empty line"
        )
    return documents


def _in_file(path: Path) -> list[Document]:
    documents: list[Document] = [[]]
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                sentence = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: byte {error.start + 1} is not UTF-8: {error.reason}; convert the file"
                ) from None
            if sentence:
                documents[-1].append(sentence)
            elif documents[-1]:
                documents.append([])
    return [document for document in documents if document]
