"""Environments are reused for the same content. pip gets the backend's settings, and its failures name their cause."""

import fcntl
import json
import subprocess
import textwrap
import zipfile
from pathlib import Path

import pytest

from herringbone_contract.errors import InputError
from herringbone_entry.preparation.requirements import _pip_settings, explain, included, local_targets, overlay

# A build backend that lies in the library's own folder, so that pip needs no network.
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/hbtiny-1-py3-none-any.whl", "w") as wheel:
        wheel.write("hbtiny.py")
        wheel.writestr("hbtiny-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: hbtiny\\nVersion: 1\\n")
        wheel.writestr("hbtiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("hbtiny-1.dist-info/RECORD", "")
    return "hbtiny-1-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'

# pip 23.2 behind a proxy that signs certificates itself.
BEHIND_PROXY = [
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, "
    "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain'))'",
    "ERROR: Could not find a version that satisfies the requirement hbtiny (from versions: none)",
    "ERROR: No matching distribution found for hbtiny",
]


def test_an_untrusted_certificate_is_the_cause():
    text = explain(BEHIND_PROXY, None)
    assert text.startswith("the package index's certificate is not signed by the system's certificates")
    assert "set PIP_CERT" in text
    assert "bake_requirements=True" in text
    assert text.endswith("No matching distribution found for hbtiny")
    assert "PIP_CERT=/opt/ca.pem" in explain(BEHIND_PROXY, "/opt/ca.pem")


def test_other_failures_are_pips_own_words():
    assert explain(BEHIND_PROXY[1:], None) == " ".join(BEHIND_PROXY[1:])
    assert explain(["Collecting a", "Killed"], None) == "Collecting a Killed"


def test_settings_of_the_backend_are_for_pip():
    assert _pip_settings({"HERRINGBONE_PIP": json.dumps({"PIP_CERT": "/ca.pem"})}) == {"PIP_CERT": "/ca.pem"}
    assert _pip_settings({}) == {}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes the environment of a job, and returns what its library says and the lines that it logged."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    numbers = iter(range(9))

    def run(requirements, files=(), **options):
        code = tmp_path / f"job-{next(numbers)}"
        code.mkdir()
        for name, write in files:
            write(code / name)
        (code / "requirements.txt").write_text(requirements)
        lines = []
        python = overlay(code / "requirements.txt", None, cache=tmp_path / "cache", log=lines.append, **options)
        says = subprocess.run([python, "-c", "import hbtiny; print(hbtiny.SAYS)"], capture_output=True, text=True)
        return says.stdout.strip(), "\n".join(lines)

    return run


def library(folder, says):
    folder.mkdir(exist_ok=True)
    for name, text in {"pyproject.toml": PROJECT, "backend.py": BACKEND, "hbtiny.py": f"SAYS = {says!r}"}.items():
        (folder / name).write_text(textwrap.dedent(text))


def wheel(folder, says, version="1"):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"hbtiny-{version}-py3-none-any.whl", "w") as file:
        file.writestr("hbtiny.py", f"SAYS = {says!r}")
        file.writestr(
            f"hbtiny-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: hbtiny\nVersion: {version}\n"
        )
        file.writestr(
            f"hbtiny-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"hbtiny-{version}.dist-info/RECORD", "")


def test_a_library_of_this_machine_is_installed_anew_when_it_has_changed(job, tmp_path):
    """The environment was kept by the text of requirements.txt alone, and the old library trained on."""
    requirements = f"hbtiny @ file://{tmp_path}/lib\n"
    library(tmp_path / "lib", "old")
    assert job(requirements)[0] == "old"
    (used,) = [path.parent for path in (tmp_path / "cache" / "environments").glob("*/herringbone-ready")]
    says, log = job(requirements)
    assert says == "old"
    assert f"UTC is reused; to install anew: rm -r {used}" in log
    # In a container, whose log a user reads outside.
    log = job(requirements, shown=Path("/home/me/cache"))[1]
    assert f"rm -r /home/me/cache/{used.relative_to(tmp_path / 'cache')}" in log
    library(tmp_path / "lib", "new")
    says, log = job(requirements)
    assert says == "new"
    assert "is reused" not in log
    # This process holds its locks until it ends, as that of a running job does.
    with (used / "herringbone-ready").open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The library is again as it was: so is the environment, which nobody has touched.
    library(tmp_path / "lib", "old")
    assert "is reused" in job(requirements)[1]


def test_folders_of_wheels_that_have_changed(job, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    wheel(tmp_path / "wheels", "old")
    assert job("hbtiny\n")[0] == "old"
    wheel(tmp_path / "wheels", "rebuilt")
    assert job("hbtiny\n")[0] == "rebuilt"
    wheel(tmp_path / "wheels", "newer", version="2")
    assert job("hbtiny\n")[0] == "newer"


def test_a_wheel_in_the_code_is_that_of_the_job(job):
    """Each job has a copy of its own, so the first job's wheel says nothing about the second job's."""
    requirements = "--find-links wheels\nhbtiny\n"
    assert job(requirements, [("wheels", lambda folder: wheel(folder, "old"))])[0] == "old"
    assert job(requirements, [("wheels", lambda folder: wheel(folder, "new"))])[0] == "new"


@pytest.mark.parametrize(
    "written",
    [
        b"\xff\xfe" + "-r more.txt\r\n".encode("utf-16-le"),
        "-r more.txt\r\n".encode("utf-32"),
        b"\xef\xbb\xbf-r more.txt\n",
        b"# -*- coding: latin-1 -*-\n# d\xe9pendances\n-r more.txt\n",
    ],
)
def test_files_in_other_encodings_are_read_as_pip_reads_them(tmp_path, written):
    (tmp_path / "requirements.txt").write_bytes(written)
    (tmp_path / "more.txt").write_text("hbtiny\n")
    assert [path.name for path in included(tmp_path / "requirements.txt")] == ["requirements.txt", "more.txt"]


def test_a_file_in_no_encoding_is_refused_by_name(tmp_path):
    (tmp_path / "requirements.txt").write_bytes(b"# d\xe9pendances\nhbtiny\n")
    with pytest.raises(InputError, match=r"(?s)requirements.txt is not in UTF-8 .*begin it with a line that names"):
        list(included(tmp_path / "requirements.txt"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16_without_a_mark_is_refused_by_name(tmp_path, encoding):
    """What pip reported was a requirement with zeros between its letters."""
    (tmp_path / "requirements.txt").write_bytes("hbtiny\n".encode(encoding))
    with pytest.raises(InputError, match=r"requirements.txt is not in UTF-8 .*zero bytes.*: save it in UTF-8"):
        list(included(tmp_path / "requirements.txt"))


def test_paths_count_from_the_folder_of_the_requirements(job):
    wheels = [("wheels", lambda folder: wheel(folder, "near"))]
    assert job("./wheels/hbtiny-1-py3-none-any.whl\n", wheels)[0] == "near"


def test_what_pip_took_from_this_machine():
    infos = [
        {"url": "file:///src/lib", "dir_info": {"editable": True}},
        {"url": "file:///job/wheels/a%20b-1-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///src/repository", "vcs_info": {"vcs": "git", "commit_id": "1"}},
        {"url": "https://index/c-1.whl", "archive_info": {}},
    ]
    report = json.dumps({"install": [{"download_info": info} for info in infos]}).encode()
    assert local_targets(report, Path("/job")) == {
        "/src/lib": True,
        "wheels/a b-1-py3-none-any.whl": True,
        "/src/repository": False,
    }
