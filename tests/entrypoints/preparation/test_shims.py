"""Herringbone's own `horovod` and `torch.sagemaker` are only for jobs that ask for them.

Horovod's is for jobs that import Horovod themselves, run under mpi, and have no real one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from herringbone_contract.launcher import Launcher
from herringbone_entry.preparation.shims import (
    asks_for_horovod,
    asks_for_torch_sagemaker,
    find_shim,
    has_horovod,
    shims,
)

STAND_IN = Path(__file__).parents[1] / "stand_in"
ASKS = "import horovod.torch as hvd"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the packages of tests/entrypoints/stand_in in place of the library's."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    for name in [name for name in sys.modules if name.partition(".")[0] == "herringbone_parallel"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("script", "asks"),
    [
        (ASKS, True),
        ("from horovod import tensorflow as hvd", True),
        ("try:\n    import horovod.keras\nexcept ImportError:\n    pass", True),
        ("# import horovod", False),
        ("import horovods", False),
        ("print('import horovod')", False),
    ],
)
def test_a_job_asks_by_an_import_of_its_own(tmp_path: Path, script: str, asks: bool) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(script)
    (tmp_path / "notes.txt").write_text(ASKS)
    assert asks_for_horovod(tmp_path) is asks


@pytest.mark.usefixtures("stand_in")
def test_the_launcher_has_to_be_mpi(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ASKS)
    folder = find_shim("horovod")
    assert folder == str(STAND_IN / "shim_horovod")
    assert shims(Launcher.MPI, tmp_path, sys.executable) == (folder,)
    for launcher in (Launcher.PLAIN, Launcher.TORCH_DISTRIBUTED, Launcher.DATA_PARALLEL):
        assert shims(launcher, tmp_path, sys.executable) == ()


def test_a_real_horovod_is_found_in_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, overlay, site = tmp_path / "code", tmp_path / "overlay", tmp_path / "site"
    python = str(overlay / "bin" / "python")
    code.mkdir()
    assert not has_horovod(code, sys.executable)
    assert not has_horovod(code, python)
    (overlay / "lib" / "python3.11" / "site-packages" / "horovod").mkdir(parents=True)
    assert has_horovod(code, python)
    assert not has_horovod(code, sys.executable)
    (site / "horovod").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))
    assert has_horovod(code, sys.executable)


def test_a_folder_of_the_job_s_own_code_is_real_too(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    assert has_horovod(tmp_path, sys.executable)


@pytest.mark.parametrize("by_mpi", [True, False])
def test_ranks_import_the_shim_and_the_log_names_it(make_job, mpirun, by_mpi: bool) -> None:
    path = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
    job = make_job(PYTHONPATH=path, HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    settings = {"sagemaker_mpi_enabled": True} if by_mpi else {"sagemaker_torch_distributed_enabled": True}
    job.write("try:\n    from horovod.torch import SIZE\nexcept ImportError:\n    SIZE = None\nprint(SIZE)", **settings)
    ended = job.run()["algo-1"]
    assert ended.rank_lines == [f"[algo-1:0] {'a stand-in' if by_mpi else None}"]
    assert any("Herringbone's own answers to `import horovod`" in line for line in ended.lines) is by_mpi


@pytest.mark.parametrize(
    ("script", "asks"),
    [
        ("import torch.sagemaker as tsm", True),
        ("from torch.sagemaker.delayed_param import DelayedParamIniter", True),
        ("from torch import nn, sagemaker", True),
        ("    import torch.sagemaker", True),
        ("# import torch.sagemaker", False),
        ("import sagemaker", False),
        ("from torch import nn  # no sagemaker", False),
        ("import torch.sagemakers", False),
    ],
)
def test_a_job_asks_for_torch_sagemaker_by_an_import_or_by_version_2(tmp_path: Path, script: str, asks: bool) -> None:
    (tmp_path / "train.py").write_text(script)
    assert asks_for_torch_sagemaker(tmp_path) is asks
    folder = str(Path(__file__).parents[3] / "parallel" / "shim_sagemaker")
    assert (folder in shims(Launcher.TORCH_DISTRIBUTED, tmp_path, sys.executable)) is asks
    assert folder not in shims(Launcher.PLAIN, tmp_path, sys.executable)
    assert folder in shims(Launcher.TORCH_DISTRIBUTED, tmp_path, sys.executable, version2=True)
