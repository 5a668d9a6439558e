"""Every relative link, every anchor and every mention of a page `docs/...` in the repository leads somewhere."""

import re
import subprocess
from functools import cache
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
# An anchor of a text that has moved to another page, so that older links to it work.
SET_ANCHOR = re.compile(r"<a id=[\"']([\w-]+)[\"']></a>")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
SOURCES = (".py", ".sh", ".toml", ".md", ".yaml", ".yml", ".tf", ".c", ".h", "")
MENTION = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")


def tracked():
    names = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True
    )
    return [path for name in names.stdout.decode().splitlines() if (path := ROOT / name).is_file()]


def anchors(text):
    """Return the anchors that a code host and the site make of a page's headings, and those that `<a id=...>` sets.

    >>> sorted(anchors("# The `distribution` dict\\n## Which image, when?\\n## Which image, when?"))
    ['the-distribution-dict', 'which-image-when', 'which-image-when-1']
    >>> sorted(anchors("# Moved\\n<a id='the-job-folder'></a>[the job folder](lives.md)"))
    ['moved', 'the-job-folder']
    """
    found = set(SET_ANCHOR.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(anchor)
    return found


@cache
def page(path):
    return path.read_text(encoding="utf-8")


def broken_links(path):
    for target in LINK.findall(FENCE.sub("", page(path))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (path.parent / name).resolve() if name else path
        if not other.exists() or (anchor and anchor not in anchors(page(other))):
            yield f"{path.relative_to(ROOT)}: {target}"


def test_links_between_pages_and_their_anchors_lead_somewhere():
    pages = [path for path in tracked() if path.suffix == ".md"]
    assert len(pages) > 50
    assert [link for path in pages for link in broken_links(path)] == []


def test_mentions_of_pages_in_code_and_messages_lead_somewhere():
    broken = []
    for path in tracked():
        if path.suffix in SOURCES and path != Path(__file__):
            try:
                text = page(path)
            except UnicodeDecodeError:
                continue
            names = {match.rstrip(".") for match in MENTION.findall(text)}
            # `docs/decisions/005` names a decision by its number.
            broken += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in sorted(names)
                if not (ROOT / name).exists() and not list(ROOT.glob(f"{name}-*.md"))
            ]
    assert broken == []


def test_the_page_of_rooms_has_every_room_of_the_client_and_names_tests_that_exist():
    text = page(ROOT / "docs" / "contribute" / "rooms.md")
    contracts = tomllib.loads(page(ROOT / "scripts/import_contracts.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["herringbone"])
    rooms = {room for layer in layers for room in layer.split(" | ")}
    assert {room for room in rooms if f"`{room}/`" not in text} == set()
    names = re.findall(r"`((?:tests|benchmarks|scripts|\.ci)/[\w./-]+)", text)
    assert [name for name in names if not (ROOT / name).exists()] == []
    pieces = re.findall(r"^(tests/\S+):", page(ROOT / ".ci" / "proofs"), re.MULTILINE)
    assert [piece for piece in pieces if piece.removesuffix("/data_parallel").split("/")[-1] not in text] == []


def test_index_lists_every_page_once():
    """The site's navigation is made from the lists of this page: a missing page is hard to find."""
    index = ROOT / "docs" / "index.md"
    links = re.findall(r"^- \[[^\]]*\]\(([^)\s]+)\)", page(index), re.MULTILINE)
    listed = [(index.parent / link).resolve() for link in links]
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path != index and path.parent.name != "decisions"}
    assert sorted(path for path in listed if path.is_relative_to(index.parent)) == sorted(
        pages | {index.parent / "decisions" / "index.md"}
    )


def test_links_of_pages_are_named_by_words():
    """A reader of the site sees titles, not the names of files."""
    pages = (ROOT / "docs").rglob("*.md")
    assert [
        f"{path.relative_to(ROOT)}: {text}"
        for path in pages
        for text in re.findall(r"\[([\w./-]+\.md)\]\(", page(path))
    ] == ["docs/contribute/rules.md: CONTRIBUTING.md"]
