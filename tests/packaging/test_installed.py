"""An installed Herringbone runs jobs, is small, and is cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = ["boto3", "botocore", "docker", "numpy", "torch", "tensorflow", "sqlite3"]


def run(python: Path, program: str) -> str:
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_the_base_install_is_at_most_10_packages_and_20_megabytes(installed: Path) -> None:
    names = run(installed, "from importlib.metadata import distributions as d; print(*[x.name for x in d()])").split()
    packages = set(names) - {"pip", "setuptools"}
    assert len(packages) <= 10, packages
    site = Path(run(installed, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
    ours = [top for top in site.iterdir() if not top.name.startswith(tools)]
    files = [path for top in ours for path in (top.rglob("*") if top.is_dir() else [top]) if path.is_file()]
    # Byte code, which pip compiles, has nearly the same size again; that of Python 3.14 is the largest.
    byte_code = [path for path in files if path.suffix == ".pyc"]
    assert sum(path.stat().st_size for path in set(files) - set(byte_code)) <= 20_000_000
    assert sum(path.stat().st_size for path in byte_code) <= 21_000_000


def test_importing_the_package_imports_nothing_heavy(installed: Path) -> None:
    loaded = run(installed, f"import sys, herringbone; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded == "[]"


def test_the_installed_wheel_runs_a_job_and_only_its_ranks_see_the_shim(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import importlib.util\nprint('shim', importlib.util.find_spec('smdistributed') is not None)\n")
    program = (
        "from herringbone import Estimator\n"
        f"job = Estimator(entry_point={str(script)!r}, instance_type='local_process').fit(logs=False)\n"
        "print([line.text for line in job.logs()])"
    )
    done = subprocess.run(
        [installed, "-c", program],
        env={"HERRINGBONE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "shim True" in done.stdout
    assert run(installed, "import importlib.util as u; print(u.find_spec('smdistributed'))") == "None"


def test_the_installed_wheel_packs_the_same_wheel_again(installed: Path) -> None:
    """The installed wheel must contain all files of a build, so that images can be built without a checkout."""
    program = (
        "import hashlib, io, zipfile; from herringbone.images.wheel import pack_herringbone\n"
        "wheel = zipfile.ZipFile(io.BytesIO(pack_herringbone()[1]))\n"
        "print(*(f'{name} {hashlib.sha256(wheel.read(name)).hexdigest()}' for name in wheel.namelist()"
        " if '.dist-info' not in name), sep='\\n')"
    )
    packed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    assert run(installed, program).splitlines() == packed.splitlines()
    assert "herringbone/_containers/pytorch/Dockerfile" in packed


def test_the_installed_command_plans_and_runs_a_job(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\npathlib.Path(os.environ['SM_MODEL_DIR'], 'weights').touch()\n"
    )
    herringbone = installed.with_name("herringbone")

    def call(*arguments: str) -> str:
        return subprocess.run(
            [herringbone, *arguments],
            cwd=tmp_path,
            env={"HERRINGBONE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert "Train on any hosts" in call("--help")
    assert "algo-1" in call("plan", "train.py")
    assert "model.tar.gz" in call("run", "train.py")


def test_an_installation_of_the_sdist_compiles_the_native_core(installed_from_source: Path) -> None:
    program = (
        "import ctypes; from importlib.resources import files\n"
        "print(ctypes.CDLL(files('herringbone_parallel.reduce') / '_native.so')._name)"
    )
    assert run(installed_from_source, program).startswith(str(installed_from_source.parents[1]))
    command = installed_from_source.with_name("herringbone")
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)


def test_the_doctor_of_an_installation_finds_core_and_pages(installed: Path, tmp_path: Path) -> None:
    command = [installed.with_name("herringbone"), "doctor", "--json"]
    environment = {"HERRINGBONE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    report = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert (states["Python"], states["PyTorch"], states["core of sums"]) == ("ok", "missing", "ok")
    assert report["pages"] == str(installed.parents[1] / "share" / "doc" / "herringbone")
    assert list(Path(report["pages"]).rglob("architecture.md"))
