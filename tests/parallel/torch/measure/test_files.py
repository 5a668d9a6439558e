"""A measured script writes no checkpoint, and does with it what scripts do with their checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.4")

import torch

from herringbone_parallel.torch.measure.stand_ins.files import scratch

MOVES = {
    "os.replace": os.replace,
    "os.rename": os.rename,
    "Path.replace": lambda part, last: Path(part).replace(last),
    "Path.rename": lambda part, last: Path(part).rename(last),
    "shutil.move": shutil.move,
}


@pytest.mark.parametrize("move", MOVES)
def test_a_file_that_is_not_written_is_renamed_and_removed_in_name_only(move, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("last.pt").write_text("of an earlier run")
    Path("other").write_text("other")
    with scratch():
        rename = {"os.replace": os.replace, "os.rename": os.rename}.get(move, MOVES[move])
        for _ in range(2):
            torch.save({}, Path("last.part"))
            rename("last.part", tmp_path / "last.pt")
        torch.save({}, "epoch-1.pt")
        os.remove("epoch-1.pt")
        torch.save({}, f=os.path.join(os.environ["SM_CHECKPOINT_DIR"], "epoch-2.pt"))
        Path(os.environ["SM_CHECKPOINT_DIR"], "epoch-2.pt").unlink()
        with pytest.raises(FileNotFoundError):
            rename("nosuch", "last.pt")
        rename("other", "moved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "moved"]
    assert Path("last.pt").read_text() == "of an earlier run"
