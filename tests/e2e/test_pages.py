"""The scripts and job files of README, docs/start/your-script.md and docs/do/resume.md run as they are printed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
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


def start(folder: Path, *command: str | Path) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "HERRINGBONE_HOME": str(folder / "home")}
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text
    return text


def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, epochs: int) -> None:
    """Run a script without a job: an import of torch takes longer than its training."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "src")
    monkeypatch.setattr(sys, "argv", [script, "--epochs", str(epochs)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small layers, and jobs compute at the same time
    runpy.run_path(script)
    torch.set_num_threads(threads)
    monkeypatch.delitem(sys.modules, "letters")


# The jobs run at the same time, and every rank imports torch.
@pytest.mark.timeout(300)
@pytest.mark.e2e
@pytest.mark.mpi
def test_your_script_from_start_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every way to run the script prints the losses of the page, up to rounding of other processors."""
    names = write_files("docs/start/your-script.md", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_bytes((ROOT / "LICENSE").read_bytes())
    jobs = [name for name in names if name.endswith(".yaml")]
    # submit.py repeats job.yaml, so it need not run once more.
    command = ("herringbone", "run", "--env", "OMP_NUM_THREADS=1")
    processes = {name: start(tmp_path, *command, name, "--", "--epochs", "1") for name in jobs}
    in_this_process(tmp_path, monkeypatch, "src/plain.py", epochs=1)
    losses = {"src/plain.py": LOSS.findall(capsys.readouterr().out)}
    losses |= {name: LOSS.findall(output(process)) for name, process in processes.items()}
    printed = dict(LOSS.findall((ROOT / "docs/start/your-script.md").read_text(encoding="utf-8")))
    for name, rows in losses.items():
        assert [(epoch, pytest.approx(float(printed[epoch]), abs=0.005)) for epoch, _ in rows] == [
            (epoch, float(loss)) for epoch, loss in rows
        ], name
    assert len(losses) == 4


def test_a_resumed_script_prints_the_losses_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files("docs/start/your-script.md", tmp_path)
    assert write_files("docs/do/resume.md", tmp_path) == ["src/resumable.py", "resumable.yaml", "shared.yaml"]
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


@pytest.mark.timeout(300)
@pytest.mark.e2e
@pytest.mark.mpi
def test_readme(tmp_path: Path) -> None:
    assert write_files("README.md", tmp_path) == ["src/train.py", "submit.py"]
    (tmp_path / "data").mkdir()
    torch.save({"inputs": torch.randn(64, 64), "labels": torch.arange(64) % 10}, tmp_path / "data" / "train.pt")
    text = output(start(tmp_path, "python", "submit.py"))
    assert sorted(epoch for epoch, _ in LOSS.findall(text)) == ["0", "0", "1", "1", "2", "2"]  # both ranks print
    assert text.splitlines()[-1].endswith("/output/model.tar.gz")
