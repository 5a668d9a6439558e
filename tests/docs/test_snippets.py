"""Every snippet of every page runs as it stands on the page.

A page says before a block why it cannot run: `<!-- not run: it installs packages -->`. Jobs on machines, clusters, containers and
SageMaker are planned up to their request; so are those of frameworks with a Python of their own. `pytest tests/docs` prints the counts.
"""

from collections import Counter

import pytest
from tests.docs.snippets import OUTPUT, PAGES, ROOT, SNIPPETS, indented_blocks, read_page
from tests.docs.workspace import EARLIER, NAMES, Workspace

from herringbone.cli.__main__ import main

BLOCKS = {path.relative_to(ROOT).as_posix(): read_page(path) for path in PAGES}
# This page removes jobs, so it comes last.
ORDER = sorted(BLOCKS, key=lambda page: (page == "docs/do/disk.md", page))
PLAIN = """
import os
print("epoch=0 loss=0.5", flush=True)
open(os.environ.get("SM_MODEL_DIR", ".") + "/model.pt", "w").close()
"""
INVENTORY = "hosts: [gpu-1, gpu-2, gpu-3, gpu-4, gpu-5]\n"
WALKTHROUGH = "docs/start/your-script.md"
# One rank runs these fragments, page by page, as a user's script would have them.
RANK_SCRIPT = """
import json
import torch

for prelude, fragments in json.load(open("fragments.json")):
    names = {}
    exec(prelude, names)
    for place, text in fragments:
        exec(compile(text, place, "exec"), names)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
print("all fragments ran")
"""


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Return the files that a page takes for granted: the project of the first page, and two earlier jobs."""
    import torch

    folder = tmp_path_factory.mktemp("base")
    project = folder / "project"
    for name in ("src", "data"):
        (project / name).mkdir(parents=True)
    (folder / "herringbone").mkdir()
    # A short text: an epoch takes milliseconds.
    text = (ROOT / "LICENSE").read_bytes()[:700]
    (folder / "herringbone" / "LICENSE").write_bytes(text)
    (project / "data" / "text.txt").write_bytes(text)
    torch.save(
        {"inputs": torch.rand(64, 64), "labels": torch.zeros(64, dtype=torch.long)}, project / "data" / "train.pt"
    )
    (project / "train.py").write_text(PLAIN)
    (project / "hosts.yaml").write_text(INVENTORY)
    for snippet in BLOCKS[WALKTHROUGH]:
        if snippet.file is not None:
            (project / snippet.file).write_text(snippet.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERRINGBONE_HOME", str(folder / "home"))
        patch.setenv("HOME", str(folder))
        patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        patch.chdir(project)
        for name in (EARLIER, *NAMES.values(), "letters-1"):
            assert main(["run", "train.py", "--job-name", name]) == 0
        yield project


@pytest.fixture(scope="session")
def statuses():
    found = {}
    yield found
    counts = Counter(found.values())
    total = sum(len([block for block in blocks if block.language not in OUTPUT]) for blocks in BLOCKS.values())
    print(f"\nsnippets: {dict(counts)} of {total}")


def test_every_block_has_a_language():
    languages = {(block.place, block.language) for blocks in BLOCKS.values() for block in blocks}
    assert {item for item in languages if item[1] not in (*SNIPPETS, *OUTPUT)} == set()
    assert [f"{path.relative_to(ROOT)}:{line}" for path in PAGES for line in indented_blocks(path)] == []


@pytest.mark.e2e
@pytest.mark.parametrize("page", [page for page in ORDER if any(block.language in SNIPPETS for block in BLOCKS[page])])
def test_the_snippets_of_a_page_run(page, base, tmp_path, statuses, monkeypatch):
    monkeypatch.chdir(tmp_path)  # restores the folder afterwards
    workspace = Workspace(tmp_path, page, base)
    for snippet in BLOCKS[page]:
        if snippet.language in SNIPPETS:
            workspace.run(snippet)
    assert [snippet.place for snippet in workspace.finish()] == [], "nothing on the page uses this file"
    statuses.update(workspace.status)
