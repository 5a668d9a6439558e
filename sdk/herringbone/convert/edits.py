"""Change a text at the positions of nodes of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Collection


class Edits:
    """Collects replacements in any order and applies them at once; the text between them stays as it is.

    >>> edits = Edits("a = b  # why")
    >>> edits.replace(ast.parse("a = b").body[0].value, "c")
    >>> edits.apply()
    'a = c  # why'
    """

    def __init__(self, text: str) -> None:
        # The columns of `ast` count bytes of UTF-8.
        self._bytes = text.encode()
        self._starts = [0]
        # bytes.splitlines ends lines where Python's parser does; str.splitlines ends them at a form feed, too.
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[tuple[int, int, str]] = []

    def replace(self, node: ast.expr | ast.stmt | ast.keyword, new: str) -> None:
        """Put a text in place of a node."""
        self._changes.append((*self._span(node), new))

    def replace_by_lines(self, node: ast.stmt, lines: Collection[str]) -> None:
        """Put statements in place of one, indented as it is, or on its line if it is not the first there."""
        before = self._bytes[self._starts[node.lineno - 1] : self._span(node)[0]].decode()
        self.replace(node, ("; " if before.strip() else "\n" + before).join(lines))

    def insert_before(self, node: ast.expr, new: str) -> None:
        """Put a text in front of a node."""
        start, _ = self._span(node)
        self._changes.append((start, start, new))

    def rename(self, keyword: ast.keyword, new: str) -> None:
        """Give a keyword argument another name."""
        assert keyword.arg is not None
        start, _ = self._span(keyword)
        self._changes.append((start, start + len(keyword.arg.encode()), new))

    def rename_attribute(self, attribute: ast.Attribute, new: str) -> None:
        """Put another name, or several with dots, in place of the last name of `a.b.c`."""
        _, end = self._span(attribute)
        self._changes.append((end - len(attribute.attr.encode()), end, new))

    def remove_arguments(self, call: ast.Call, removed: Collection[ast.expr | ast.keyword]) -> None:
        """Remove arguments from a call, each with the comma between it and its neighbour."""
        arguments: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=self._span)
        kept_spans = [self._span(argument) for argument in arguments if argument not in removed]
        for position, argument in enumerate(arguments):
            if argument not in removed:
                continue
            start, _ = self._span(argument)
            if kept_spans and start > kept_spans[-1][1]:
                # No argument from here on is kept: remove all of them at once. A comma after the last one stays.
                self._changes.append((kept_spans[-1][1], self._span(arguments[-1])[1], ""))
                return
            if not kept_spans:
                # Up to the closing parenthesis, so that a comma after the last argument goes as well.
                self._changes.append((start, self._span(call)[1] - 1, ""))
                return
            self._changes.append((start, self._span(arguments[position + 1])[0], ""))

    def remove_lines(self, node: ast.stmt) -> None:
        """Remove a statement with its lines; other code on these lines stays."""
        start, end = self._span(node)
        line_start, line_end = self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]
        rest = self._bytes[end:line_end].strip()
        if self._bytes[line_start:start].strip() or (rest and not rest.startswith(b"#")):
            self._changes.append((start, end, "pass"))
        else:
            self._changes.append((line_start, line_end, ""))

    def apply(self) -> str:
        """Return the changed text."""
        text = self._bytes
        # From the end to the start, so that positions stay valid.
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
