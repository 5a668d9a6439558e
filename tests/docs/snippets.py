"""Read the snippets of a page: its fenced blocks of Python, shell commands and YAML.

    <!-- not run: it installs packages -->     the reason why the next block cannot run in a test
    ```console
    $ pip install .
    ```

A block whose first line is `# src/train.py` is the file of that name. In a `console` block, a line with `$ ` is a
command and every other line is output. Blocks of `text` and `pycon` are output, and no snippets.
"""

import itertools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("examples/*/*.md"),
    )
    if path.parent.name != "decisions"
)
SNIPPETS = ("python", "console", "bash", "yaml", "json", "dockerfile")
OUTPUT = ("text", "pycon")
_FENCE = re.compile(r"( *)```(\S*)$")
_REASON = re.compile(r" *<!-- not run: (.+) -->$")
_FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|json))$")
_GENERATED = re.compile(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", re.DOTALL)


class Snippet(NamedTuple):
    """One block. `reason` is set where it cannot run; `file` is its name where the block is a file."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_page(path: Path) -> list[Snippet]:
    """Return all fenced blocks of a page, in order. Raises `ValueError` for a fence that is not closed."""
    # Usages that are made from the commands themselves are no snippets; keep the numbers of the lines.
    text = _GENERATED.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
    lines = text.split("\n")
    snippets = []
    at = 0
    reason = None
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            end = lines.index(f"{fence[1]}```", at + 1)
            body = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
            file = _FILE.match(body[0]) if body else None
            name = path.relative_to(ROOT).as_posix()
            snippets.append(Snippet(name, at + 1, fence[2], "\n".join(body), reason, file[1] if file else None))
            at, reason = end, None
        elif lines[at].strip():
            match = _REASON.match(lines[at])
            reason = match[1] if match else None
        at += 1
    return snippets


def indented_blocks(path: Path) -> list[int]:
    """Return the lines at which Markdown sees an indented block, which has no language: outside of lists and fences."""
    found = []
    fenced, in_list, before = False, False, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.strip():
            if re.match(r" *([-*]|\d+\.) ", line):
                in_list = True
            elif not line.startswith(" "):
                in_list = False
            if line.startswith("    ") and not in_list and not before.strip():
                found.append(number)
        before = line
    return found


def commands(snippet: Snippet) -> list[list[list[str]]]:
    """Return the commands of a `console` block: for each, its parts between `&&` and `|`, as words.

    >>> commands(Snippet("a.md", 1, "console", "$ cd a && herringbone ls | head   # jobs"))
    [[['cd', 'a'], ['herringbone', 'ls'], ['head']]]
    """
    text = snippet.text.replace("\\\n", " ")
    found = []
    for line in text.split("\n"):
        if line.startswith("$ "):
            parts: list[list[str]] = [[]]
            lexer = shlex.shlex(line[2:], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            for word in lexer:
                if word in ("&&", "|", ";"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            # Where the output goes is no argument.
            found.append([list(itertools.takewhile(lambda word: not word.startswith(">"), part)) for part in parts])
    return found
