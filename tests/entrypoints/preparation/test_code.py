"""The user's code from a folder, a file or an archive, its entry point, and its packages."""

from __future__ import annotations

import io
import json
import signal
import socket
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from herringbone_contract.errors import ArchiveError, ContractError, InputError, UnsupportedError
from herringbone_entry.preparation.code import Program, fill, find_program


def archive(path: Path, *members: tarfile.TarInfo, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("form", ["folder", "file", "tar.gz", "file://tar.gz"])
def test_code_comes_from_every_kind_of_source(make_job, tmp_path: Path, form: str) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print('filled')")
    packed = archive(tmp_path / "sourcedir.tar.gz", **{"train.py": "print('filled')"})
    places = {"folder": source, "file": source / "train.py", "tar.gz": packed, "file://tar.gz": f"file://{packed}"}
    job = make_job()
    job.write("", sagemaker_submit_directory=str(places[form]))
    (job.base() / "code" / "train.py").unlink()
    assert job.run()["algo-1"].lines == ["[algo-1:0] filled"]


def test_existing_code_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    fill(tmp_path, "/nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("place", "error", "says"),
    [("/nowhere", InputError, "does not exist"), ("ftp://b/k.tar.gz", UnsupportedError, "a file:// or an s3://")],
)
def test_missing_code_is_refused(tmp_path: Path, place: str, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        fill(tmp_path / "code", place)


@pytest.mark.parametrize(
    "wicked",
    [
        [member("../evil.py")],
        [member("a/../../evil.py")],
        [member("/tmp/evil.py")],
        [member("link", tarfile.SYMTYPE, "../..")],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("a/link", tarfile.SYMTYPE, "../../x")],
        [member("hard", tarfile.LNKTYPE, "../../etc/passwd")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("here", tarfile.SYMTYPE, "."), member("up", tarfile.SYMTYPE, "here/.."), member("up/evil.py")],
    ],
    ids=lambda members: members[-1].name,
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, wicked: list[tarfile.TarInfo]) -> None:
    path, folder = archive(tmp_path / "x.tar.gz", member("ok.py"), *wicked), tmp_path / "deep" / "code"
    folder.mkdir(parents=True)
    with pytest.raises(ArchiveError):
        fill(folder, str(path))
    assert not list(tmp_path.rglob("evil.py"))


def test_links_within_an_archive_are_fine(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar.gz", member("a/b.py"), member("a/c.py", tarfile.SYMTYPE, "../a/b.py"))
    folder = tmp_path / "code"
    folder.mkdir()
    fill(folder, str(path))
    assert (folder / "a" / "c.py").resolve() == (folder / "a" / "b.py").resolve()


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_archive_fails_the_job_by_name(make_job, tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path / "x.tar.gz", **{"train.py": "print(1)\n" * 1000})
    data = path.read_bytes()
    path.write_bytes({"cut": data[: len(data) // 2], "noise": b"noise" * 100, "empty": b""}[damage])
    job = make_job()
    job.write("", sagemaker_submit_directory=str(path))
    (job.base() / "code" / "train.py").unlink()
    ended = job.run()["algo-1"]
    assert ended.code == 1
    assert (ended.failure.exception, ended.failure.rank) == ("ArchiveError", None)
    assert str(path) in ended.failure_text


def test_entry_points_by_their_kind(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "run.sh").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").touch()
    named = [find_program(tmp_path, {"sagemaker_program": name}) for name in ("train.py", "run.sh", "pkg")]
    assert named == [
        Program("script", str(tmp_path / "train.py")),
        Program("program", "/bin/sh", (str(tmp_path / "run.sh"),)),
        Program("module", "pkg"),
    ]
    # Files that lost the bit by which the kernel would run them.
    for name, line in (("tool", b"#! /usr/bin/env python\r\n1 / 0"), ("bare", b"1")):
        (tmp_path / name).write_bytes(line)
    assert find_program(tmp_path, {"sagemaker_program": "tool"}) == Program(
        "program", "/usr/bin/env", ("python", str(tmp_path / "tool"))
    )
    with pytest.raises(InputError, match="has no line #!"):
        find_program(tmp_path, {"sagemaker_program": "bare"})
    for name in ("tool", "bare"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"'trian.py' is not in .*; there is: pkg, run.sh, train.py"):
        find_program(tmp_path, {"sagemaker_program": "trian.py"})
    with pytest.raises(ContractError, match="has no sagemaker_program"):
        find_program(tmp_path, {})


def wheel(folder: Path, name: str, version: str) -> None:
    """Write the smallest wheel that pip installs."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"version = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


def offline(tmp_path: Path) -> dict[str, str]:
    wheel(tmp_path / "wheels", "hbtiny", "1.5")
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "HERRINGBONE_CACHE": str(tmp_path / "cache"),
    }


def test_p21_requirements_are_installed_once_and_shared(make_job, tmp_path: Path) -> None:
    settings, began = offline(tmp_path), []
    jobs = [make_job(hosts=2, **settings), make_job(**settings)]
    for job in jobs:
        job.write(
            "import hbtiny, herringbone_contract, time; print(hbtiny.version, time.time())",
            sagemaker_torch_distributed_enabled=True,
        )
        for host in job.hosts:
            (job.base(host) / "code" / "requirements.txt").write_text("-r more.txt\n")
            (job.base(host) / "code" / "more.txt").write_text("hbtiny==1.5  # the tiny one\n")
        began.append(time.time())
        ended = job.run(timeout=60.0)
        assert [result.code for result in ended.values()] == [0] * len(job.hosts), ended
    assert len(list((tmp_path / "cache" / "environments").glob("*/herringbone-ready"))) == 1
    reused, last = ended["algo-1"].lines
    assert " is reused; " in reused, "the second job asked pip again"
    assert last.split()[1] == "1.5"
    assert float(last.split()[2]) - began[1] < 1.5


def test_p21_an_unavailable_package_is_named(make_job, tmp_path: Path) -> None:
    job = make_job(**offline(tmp_path))
    job.write("print('never')")
    (job.base() / "code" / "requirements.txt").write_text("hbtiny==1.5\nhb-no-such-package>=2\n")
    ended = job.run(timeout=60.0)["algo-1"]
    assert ended.code == 1
    assert ended.failure.exception == "LaunchError"
    assert "hb-no-such-package>=2" in ended.failure_text[:400]
    assert not list((tmp_path / "cache").rglob("herringbone-ready"))


def test_p21_a_missing_included_file_is_named(make_job, tmp_path: Path) -> None:
    job = make_job(**offline(tmp_path))
    job.write("print('never')")
    (job.base() / "code" / "requirements.txt").write_text("-r gone.txt\n")
    assert "gone.txt does not exist" in job.run()["algo-1"].failure.message


def test_p21_a_wrong_hash_is_refused(make_job, tmp_path: Path, monkeypatch) -> None:
    # As in a container: pip's settings are not in the environment, but come from the backend.
    settings = offline(tmp_path)
    cache = settings.pop("HERRINGBONE_CACHE")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    job = make_job(HERRINGBONE_CACHE=cache, HERRINGBONE_PIP=json.dumps(settings))
    job.write("print('never')")
    (job.base() / "code" / "requirements.txt").write_text(f"hbtiny==1.5 --hash=sha256:{'0' * 64}\n")
    ended = job.run(timeout=60.0)["algo-1"]
    assert ended.code == 1
    assert any("hashes" in line.lower() for line in ended.lines)


def test_a_stop_during_preparation_ends_the_host(make_job, tmp_path: Path) -> None:
    silent_index = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple"
    job = make_job(HERRINGBONE_CACHE=str(tmp_path), PIP_INDEX_URL=address, NO_PROXY="127.0.0.1", PIP_RETRIES="9")
    job.write("print('never')")
    (job.base() / "code" / "requirements.txt").write_text("hb-slow\n")
    job.start()
    time.sleep(1.0)
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    ended = job.wait(timeout=5.0)["algo-1"]
    silent_index.close()
    assert ended.code == 143
    assert job.survivors() == []
