"""Changes to a text at places that its syntax tree names."""

from __future__ import annotations

import ast
from collections.abc import Collection


class Edits:
    """Replacements, collected in any order and made at once; what lies between them stays as it is.

    >>> edits = Edits("a = b  # why")
    >>> edits.replace(ast.parse("a = b").body[0].value, "c")
    >>> edits.apply()
    'a = c  # why'
    """

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[tuple[int, int, str]] = []

    def replace(self, node: ast.expr | ast.stmt | ast.keyword, new: str) -> None:
        self._changes.append((*self._span(node), new))

    def insert_before(self, node: ast.expr, new: str) -> None:
        start, _ = self._span(node)
        self._changes.append((start, start, new))

    def rename(self, keyword: ast.keyword, new: str) -> None:
        """Give a keyword argument another name."""
        assert keyword.arg is not None
        start, _ = self._span(keyword)
        self._changes.append((start, start + len(keyword.arg.encode()), new))

    def remove_arguments(self, call: ast.Call, gone: Collection[ast.expr | ast.keyword]) -> None:
        """Take arguments out of a call, each with the comma that parts it from its neighbour."""
        arguments: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=self._span)
        kept = [self._span(each) for each in arguments if each not in gone]
        for place, each in enumerate(arguments):
            if each not in gone:
                continue
            start, _ = self._span(each)
            if kept and start > kept[-1][1]:
                # From here on none is kept: they go at once, and a comma behind the last of them stays.
                self._changes.append((kept[-1][1], self._span(arguments[-1])[1], ""))
                return
            if not kept:
                self._changes.append((start, self._span(call)[1] - 1, ""))
                return
            self._changes.append((start, self._span(arguments[place + 1])[0], ""))

    def remove_lines(self, node: ast.stmt) -> None:
        """Take a statement out with its lines; what else stands on them stays."""
        start, end = self._span(node)
        first, last = self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]
        rest = self._bytes[end:last].strip()
        if self._bytes[first:start].strip() or (rest and not rest.startswith(b"#")):
            self._changes.append((start, end, "pass"))
        else:
            self._changes.append((first, last, ""))

    def apply(self) -> str:
        """Return the changed text."""
        text = self._bytes
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text.decode()

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )
