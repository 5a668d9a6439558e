"""The navigation and the pages that docs/conf.py makes for the site, without building the site."""

import doctest
import importlib.util
from pathlib import Path

from scripts import look_up
from tests.docs import snippets

DOCS = Path(__file__).resolve().parents[2] / "docs"
DO = ["Do: train", "Do: run", "Do: watch", "Do: search", "Do: serve"]


def configuration():
    spec = importlib.util.spec_from_file_location("site_configuration", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_in_docstrings_are_right():
    results = [doctest.testmod(module) for module in (configuration(), look_up, snippets)]
    assert [result.failed for result in results] == [0, 0, 0]
    assert all(result.attempted for result in results)


def test_the_navigation_has_the_parts_of_the_index():
    trees = configuration().toctrees((DOCS / "index.md").read_text(encoding="utf-8"))
    captions = [line.removeprefix(":caption: ") for line in trees.splitlines() if line.startswith(":caption: ")]
    assert captions == ["Start", *DO, "Look up", "Understand", "Contribute"]


def test_the_page_of_rules_has_links_that_are_right_on_its_place():
    source = [""]
    configuration().source_read(None, "contribute/rules", source)
    assert source[0].startswith("# Contributing")
    assert "(../look-up/glossary.md)" in source[0]
