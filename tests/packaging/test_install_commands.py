"""Commands that install Herringbone name a checkout, because the name on a package index is not ours."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "contract",
    "sdk",
    "entrypoints",
    "parallel",
    "containers",
    "docs",
    "examples",
    "benchmarks",
    "compat",
    "infra",
    "scripts",
)
KINDS = (".md", ".py", ".tf", ".sh", ".toml", "")
# A path ends in the name, too: pip install '/tmp/herringbone[mpi]'.
INDEX = re.compile(
    r"pip install (-\S+ )*[\"']?herringbone\b|"
    r"[\"'` ]herringbone\[[a-z]"
)


def test_no_text_installs_herringbone_from_an_index():
    """A stranger could own the package of that name."""
    paths = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS and path.is_file()
    ]
    paths += ROOT.glob("*.md")
    texts = {path.relative_to(ROOT): path.read_bytes().decode(errors="replace") for path in paths}
    assert len(texts) > 500
    found = [f"{name}: {match[0]}" for name, text in texts.items() if (match := INDEX.search(text))]
    assert found == []
