"""Documents from text files: a sentence a line; an empty line, or the file's end, ends a document.

notes.txt:  The first sentence of a document.
            The second one.

            Another document begins.
"""

from __future__ import annotations

from pathlib import Path

from common.data import DataError

Document = list[str]


def read(folder: Path) -> list[Document]:
    """Read all .txt files of a channel. Raises `DataError` for what is no text, and where there is too little."""
    files = sorted(folder.rglob("*.txt"))
    found = [document for path in files for document in _in_file(path)]
    if len(found) < 2:
        raise DataError(
            f"{folder}: {len(found)} documents in {len(files)} files of .txt; a sentence that does not follow is"
            " taken from another document, so that there have to be two. An empty line ends a document"
        )
    return found


def _in_file(path: Path) -> list[Document]:
    documents: list[Document] = [[]]
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                sentence = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: byte {error.start + 1} is no UTF-8: {error.reason}; convert the file"
                ) from None
            if sentence:
                documents[-1].append(sentence)
            elif documents[-1]:
                documents.append([])
    return [document for document in documents if document]
