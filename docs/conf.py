"""Settings of the documentation site, which `./scripts/docs` builds.

The pages are plain Markdown, and their links work on a code host too. This file makes three things while Sphinx reads
a page, because only the site needs them: the navigation, pages without links that leave docs/, and a page with the
rules of CONTRIBUTING.md.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent

project = "Herringbone"
author = "the Herringbone developers"
copyright = author
extensions = ["myst_parser", "sphinx_copybutton"]
# The anchors of headings are those of code hosts.
myst_heading_anchors = 4
# A block without a language is output, or a mixture of commands and output.
highlight_language = "none"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "Herringbone"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def toctrees(index: str) -> str:
    """Return the navigation: one hidden toctree for each heading of the index page, with the pages that it links.

    >>> print(toctrees("## Do\\n- [Resume a job](do/resume.md): checkpoints"))
    ```{toctree}
    :hidden:
    :caption: Do
    <BLANKLINE>
    Resume a job <do/resume.md>
    ```
    """
    parts = []
    for heading, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", index, re.MULTILINE):
        entries = [f"{words.replace('`', '')} <{target}>" for words, target in _LINK.findall(text)]
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *entries, "```"]))
    return "\n\n".join(parts)


def without_outer_links(text: str, page: str) -> str:
    """Replace links to files outside docs/ by their text, because the site does not contain these files.

    >>> without_outer_links("[the example](../../examples/digits) of [jobs](resume.md)", "do/slurm")
    'the example of [jobs](resume.md)'
    """

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        leaves = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)).startswith("../")
        return words if leaves and not re.match("[a-z]+:", target) else match[0]

    return _LINK.sub(link, text)


def source_read(app: Any, page: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    text = source[0]
    if page == "contribute/rules":
        text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
        # Its links start at the root of the repository.
        text = re.sub(r"\]\((?!docs/|[a-z]+:|#)", "](../../", text).replace("](docs/", "](../")
    text = without_outer_links(text, page)
    if page == "index":
        text += "\n\n" + toctrees(text)
    if page == "decisions/index":
        text += "\n\n```{toctree}\n:glob:\n\n[0-9]*\n```\n"
    source[0] = text


def setup(app: Any) -> None:
    app.connect("source-read", source_read)
