"""Every snippet of every page runs as it stands on the page.

A page says before a block why the block cannot run: `<!-- not run: it installs packages -->`. Jobs on machines, on
clusters, in containers and on SageMaker are planned up to their request; so are those of frameworks that need a Python
of their own. `pytest -s tests/docs` prints the counts.
"""

import json
from collections import Counter

import pytest
from tests.docs.preludes import RANK
from tests.docs.snippets import OUTPUT, PAGES, ROOT, SNIPPETS, indented_blocks, read_page
from tests.docs.workspace import EARLIER, IN_A_RANK, NAMES, Workspace, run_earlier

from herringbone import PyTorch

BLOCKS = {path.relative_to(ROOT).as_posix(): read_page(path) for path in PAGES}
TOTAL = sum(block.language in SNIPPETS for blocks in BLOCKS.values() for block in blocks)
WALKTHROUGH = "docs/start/your-script.md"
# This page removes jobs, so it comes last.
ORDER = sorted(BLOCKS, key=lambda page: (page == "docs/do/disk.md", page))
PLAIN = """
import os
print("epoch=0 loss=0.5", flush=True)
for name in ("SM_MODEL_DIR", "SM_CHECKPOINT_DIR", "SM_OUTPUT_DATA_DIR"):
    open(os.environ[name] + "/model.pt", "w").close()
"""
INVENTORY = "hosts: [gpu-1, gpu-2, gpu-3, gpu-4, gpu-5]\nshared: [/nfs]\n"
# One rank runs these fragments, page by page, as a user's script would have them.
RANK_SCRIPT = """
import json, os, traceback

variable = "HERRINGBONE_REDUCE_TOKEN_FILE"
with open(os.environ[variable], "rb") as file:
    token = file.read()
# A script joins once, and splits one model. So each page has a process of its own, with a token to read.
for prelude, fragments in json.load(open("fragments.json")):
    reader, writer = os.pipe()
    os.write(writer, token)
    os.close(writer)
    os.environ[variable] = f"/dev/fd/{reader}"
    if (child := os.fork()) == 0:
        try:
            names = {}
            exec(prelude, names)
            for place, text in fragments:
                exec(compile(text, place, "exec"), names)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, fragments
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the files that a page takes for granted, in a home with earlier jobs."""
    folder = tmp_path_factory.mktemp("base")
    project = folder / "project"
    for name in ("src", "data", "herringbone"):
        (project / name).mkdir(parents=True)
    # A short text: an epoch takes milliseconds.
    text = (ROOT / "LICENSE").read_bytes()[:700]
    (project / "herringbone" / "LICENSE").write_bytes(text)
    (project / "data" / "text.txt").write_bytes(text)
    # Without torch, a job takes a second.
    for name in ("train.py", "src/train.py"):
        (project / name).write_text(PLAIN)
    (project / "hosts.yaml").write_text(INVENTORY)
    letters = next(block for block in BLOCKS[WALKTHROUGH] if block.file == "src/letters.py")
    (project / letters.file).write_text(letters.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HERRINGBONE_HOME", raising=False)
        patch.setenv("HOME", str(folder))
        patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        patch.chdir(project)
        for name in (EARLIER, *NAMES.values(), "letters-1"):
            run_earlier(name)
        yield project


@pytest.fixture(scope="module")
def statuses():
    """Return what happened to each snippet."""
    return {}


def test_every_block_has_a_language():
    languages = {(block.place, block.language) for blocks in BLOCKS.values() for block in blocks}
    assert {item for item in languages if item[1] not in (*SNIPPETS, *OUTPUT)} == set()
    assert [f"{path.relative_to(ROOT)}:{line}" for path in PAGES for line in indented_blocks(path)] == []


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in ORDER if any(block.language in SNIPPETS for block in BLOCKS[page])])
def test_the_snippets_of_a_page_run(page, base, tmp_path, statuses, monkeypatch):
    monkeypatch.chdir(tmp_path)  # restores the folder afterwards
    workspace = Workspace(tmp_path, page, base)
    for snippet in BLOCKS[page]:
        if snippet.language in SNIPPETS:
            workspace.run(snippet)
    assert [snippet.place for snippet in workspace.finish()] == [], "nothing on the page uses this file"
    statuses.update(workspace.status)


@pytest.mark.e2e
def test_the_fragments_of_a_training_script_run_in_a_rank(base, tmp_path, statuses, monkeypatch):
    waiting = [snippet for snippet, status in statuses.items() if status == IN_A_RANK]
    fragments = [
        (prelude, [(snippet.place, snippet.text) for snippet in waiting if snippet.page == page])
        for page, prelude in RANK.items()
    ]
    (tmp_path / "fragments.json").write_text(json.dumps(fragments))
    (tmp_path / "rank.py").write_text(RANK_SCRIPT)
    monkeypatch.chdir(tmp_path)
    PyTorch(
        "rank.py",
        source_dir=str(tmp_path),
        instance_type="local_process",
        distribution={
            "mpi": {"enabled": True, "processes_per_host": 1},
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 1, "microbatches": 2}}},
        },
    ).fit()
    statuses.update(dict.fromkeys(waiting, "executed"))


def test_every_snippet_is_counted(statuses, capsys):
    counts = Counter(statuses.values())
    # A page that failed, or was not selected, has no counts: its own test says so.
    pages = {snippet.page for snippet in statuses}
    expected = sum(block.language in SNIPPETS for page in pages for block in BLOCKS[page])
    with capsys.disabled():
        print("\nsnippets:", ", ".join(f"{number} {status}" for status, number in counts.items()), f"of {TOTAL}")
    assert counts.total() == expected
    # Fragments stay in a rank where their test was not selected.
    assert counts.keys() <= {"executed", "planned", "parsed", "marked", IN_A_RANK}
