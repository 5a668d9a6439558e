"""README and pages are short where readers look first, and the resumed script of docs/do/resume.md loses nothing."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
# A block whose first line is a comment with a file's name is that file.
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOSS = re.compile(r"epoch=(\d+) loss=([\d.]+)")


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files of a page into a folder, and return their names."""
    files = FILE.findall((ROOT / page).read_text(encoding="utf-8"))
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [name for name, _ in files]


def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, epochs: int) -> None:
    """Run a script without a job: an import of torch takes longer than its training."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "src")
    monkeypatch.setattr(sys, "argv", [script, "--epochs", str(epochs)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small layers
    runpy.run_path(script)
    torch.set_num_threads(threads)
    monkeypatch.delitem(sys.modules, "letters", raising=False)


def test_a_resumed_script_prints_the_losses_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files("docs/start/your-script.md", tmp_path)
    assert write_files("docs/do/resume.md", tmp_path) == ["src/resumable.py", "src/middle.py", "resumable.yaml"]
    for variable in ("SM_CHANNEL_TRAINING", "SM_CHECKPOINT_DIR", "SM_MODEL_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "text.txt").write_bytes((ROOT / "LICENSE").read_bytes()[:2000])
    (tmp_path / "data").symlink_to(tmp_path)
    in_this_process(tmp_path, monkeypatch, "src/resumable.py", epochs=1)
    in_this_process(tmp_path, monkeypatch, "src/resumable.py", epochs=2)
    resumed = capsys.readouterr().out
    in_this_process(tmp_path, monkeypatch, "src/plain.py", epochs=2)
    assert resumed == capsys.readouterr().out
    assert [epoch for epoch, _ in LOSS.findall(resumed)] == ["0", "1"]
    for told in ("from the start", "from epoch 2, step 100"):
        in_this_process(tmp_path, monkeypatch, "src/middle.py", epochs=3)
        assert capsys.readouterr().out == f"{told}\n"


def test_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_no_cell_of_a_table_has_more_than_60_words():
    pages = [ROOT / "README.md", *(ROOT / "docs" / "start").glob("*.md"), *(ROOT / "docs" / "do").glob("*.md")]
    rows = [(page, row) for page in pages for row in page.read_text(encoding="utf-8").splitlines() if row[:1] == "|"]
    cells = [(page, cell) for page, row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [(page.name, cell[:60]) for page, cell in cells if len(cell.split()) > 60] == []


def test_hand_written_pages_have_at_most_60_000_words():
    """Decisions and what a script prints do not count. A word has a letter or a digit: bars of tables are none."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    written = [re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL) for text in texts]
    assert sum(bool(re.search(r"\w", word)) for text in written for word in text.split()) <= 60_000
