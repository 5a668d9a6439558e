"""Selection of a job's code: files that belong to it, ignored files, and files that may not travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from herringbone.code.files import check_source, code_files, copy_source, located, measure_code
from herringbone.plan.code_size import CodeSize, code_size
from herringbone.plan.links import result_folders
from herringbone.plan.options.typed import Options, TensorBoardOutputConfig
from herringbone.plan.source import find_source
from herringbone_contract import safe_tree
from herringbone_contract.errors import InputError

NO_HOME = Path("/nonexistent")
# Written in two parts, because secret scanners would take this file for a key otherwise.
KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\n"


@pytest.fixture
def write(tmp_path):
    """Writes files and `src/train.py`, and returns the folder `src`."""

    def files(texts: dict[str, str]) -> Path:
        for name, text in {"src/train.py": "", **texts}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path / "src"

    return files


def names(folder: Path, dependencies: tuple[str, ...] = (), secrets: tuple[str, ...] = ()) -> list[str]:
    source = find_source("train.py", str(folder), dependencies, base=folder.parent, secrets=secrets)
    return list(code_files(source, exclude=NO_HOME))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"src/b/a.py": "", "src/a.py": ""}, "a.py b/a.py train.py"),
        ({"src/.git/HEAD": "", "src/lib/__pycache__/a.pyc": ""}, "train.py"),
        ({"src/.gitignore": "*.log\n/data/\n", "src/x/a.log": "", "src/data/d": ""}, ".gitignore train.py"),
        ({"src/.gitignore": "*.log\n", "src/lib/.gitignore": "!keep.log\n", "src/lib/keep.log": "", "src/a.log": ""},
         ".gitignore lib/.gitignore lib/keep.log train.py"),
        ({"src/lib/.gitignore": "/a.py\n", "src/a.py": "", "src/lib/a.py": ""}, "a.py lib/.gitignore train.py"),
        ({".gitignore": "*.ckpt\n/src/out\n", ".git/HEAD": "", "src/a.ckpt": "", "src/out/x": "", "src/b/out/x": ""},
         "b/out/x train.py"),
        ({".gitignore": "*.ckpt\n", "src/a.ckpt": ""}, "a.ckpt train.py"),
        ({".git/info/exclude": "*.ckpt\n/src/out\n", "src/a.ckpt": "", "src/out/x": "", "src/b/out/x": ""},
         "b/out/x train.py"),
        ({"src/.git/info/exclude": "*.ckpt\n", "src/.gitignore": "!b.ckpt\n", "src/a.ckpt": "", "src/b.ckpt": ""},
         ".gitignore b.ckpt train.py"),
        ({"src/.git": "gitdir: ../.git/worktrees/w\n", ".git/worktrees/w/commondir": "../..\n",
          ".git/info/exclude": "*.ckpt\n", "src/a.ckpt": ""}, "train.py"),
        ({".gitignore": "src/\n", ".git/HEAD": "", "src/a.py": ""}, "a.py train.py"),
        ({"src/.dockerignore": "a.py\n**/b.py\n", "src/a.py": "", "src/x/a.py": "", "src/x/b.py": ""},
         ".dockerignore train.py x/a.py"),
        ({"src/.dockerignore": "*\n!lib/a.py\n", "src/lib/a.py": "", "src/lib/b.py": ""}, "lib/a.py train.py"),
        ({"src/.gitignore": "data/\n", "src/.herringboneignore": "!data/\n*.md\n", "src/data/d": "", "src/r.md": ""},
         ".gitignore .herringboneignore data/d train.py"),
        ({"src/.gitignore": "train.py\n"}, ".gitignore train.py"),
    ],
)  # fmt: skip
def test_the_files_of_a_folder(write, files, expected):
    assert names(write(files)) == expected.split()


def test_dependencies_lie_at_the_root_and_replace_files_of_the_same_name(write):
    folder = write({"src/one.py": "", "src/lib/a.py": "", "lib/a.py": "", "lib/.gitignore": "b.py", "lib/b.py": "",
                    "one.py": ""})  # fmt: skip
    source = find_source("train.py", "src", ("lib", "one.py"), base=folder.parent)
    files = code_files(source, exclude=NO_HOME)
    assert {name: path.relative_to(folder.parent).as_posix() for name, path in files.items()} == {
        "lib/.gitignore": "lib/.gitignore",
        "lib/a.py": "lib/a.py",
        "one.py": "one.py",
        "train.py": "src/train.py",
    }


def test_a_file_in_place_of_a_folder_is_refused(write):
    folder = write({"src/lib": "", "lib/a.py": ""})
    with pytest.raises(InputError, match=r"needs a folder 'lib' in the code, where .*src/lib is a file; rename one"):
        names(folder, dependencies=("lib",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "TOKEN=1"),
        ("conf/.env.production", ""),
        (".aws/credentials", ""),
        (".netrc", ""),
        ("keys/id_rsa", ""),
        ("cert.pem", "-----BEGIN CERTIFICATE-----\n" + KEY),
        ("notes.txt", KEY),
        ("store.p12", ""),
        ("credentials.json", "{}"),
        ("kaggle.json", "{}"),
        ("secrets.py", ""),
        ("conf/Secrets.toml", ""),
        ("client_secret_12.json", ""),
        (".pypirc", ""),
        ("account.json", '{"type": "service_account", "private_key": "' + KEY + '"}'),
    ],
)
def test_a_secret_travels_only_when_include_secrets_names_it(write, name, text):
    folder = write({f"src/{name}": text})
    with pytest.raises(InputError) as caught:
        names(folder)
    assert f"source_dir: {name} would travel with the code" in str(caught.value)
    assert f"include_secrets=['{name}']" in str(caught.value)
    assert names(folder, secrets=(name,)) == sorted([name, "train.py"])
    (folder / ".herringboneignore").write_text(f"/{name}\n")
    assert names(folder) == [".herringboneignore", "train.py"]


def test_a_file_that_only_resembles_a_secret_travels(write):
    folder = write({
        "src/.env.example": "TOKEN=", "src/cert.pem": "-----BEGIN CERTIFICATE-----\n", "src/id_rsa.pub": "ssh-rsa A",
        "src/keys.py": f"KEY = '''{KEY}'''", "src/credentials": "", "src/a.json": '{"private_key": ""}',
        "src/secret_santa.py": "", "src/credentials.example.json": "",
    })  # fmt: skip
    assert names(folder) == [
        ".env.example", "a.json", "cert.pem", "credentials", "credentials.example.json", "id_rsa.pub", "keys.py",
        "secret_santa.py", "train.py",
    ]  # fmt: skip


def test_include_secrets_takes_names_as_they_are_in_the_code(write):
    folder = write({"lib/.env": "", "src/.env": ""})
    with pytest.raises(InputError, match=r"source_dir: \.env, lib/\.env would travel"):
        names(folder, dependencies=("lib",))
    taken = names(folder, dependencies=("lib",), secrets=(".env", "lib/.env"))
    assert taken == [".env", "lib/.env", "train.py"]
    for wrong in ("nosuch", "../lib/.env", "other/.env"):
        with pytest.raises(InputError, match=f"include_secrets: '{wrong}' is no file of the code"):
            names(folder, secrets=(wrong,))


def test_a_link_to_a_secret_is_a_secret(write):
    folder = write({"src/.env": "", "src/.gitignore": ".env"})
    (folder / "settings").symlink_to(".env")
    with pytest.raises(InputError, match="settings would travel"):
        names(folder)


def test_a_secret_that_is_named_as_a_dependency_travels(write):
    folder = write({".env": "A=1"})
    assert names(folder, dependencies=(".env",)) == [".env", "train.py"]


def test_links_inside_are_followed_and_others_refused(write):
    folder = write({"src/lib/a.py": "", "outside/b.py": "", "src/.gitignore": "ignored"})
    (folder / "alias").symlink_to("lib")
    (folder / "gone").symlink_to("nowhere")
    (folder / "ignored").symlink_to("../outside")
    assert names(folder) == [".gitignore", "alias/a.py", "lib/a.py", "train.py"]
    (folder / "out").symlink_to("../outside/b.py")
    with pytest.raises(InputError, match=r"src/out is a link to .*/outside/b\.py, outside of the folder; copy the"):
        names(folder)
    (folder / "out").unlink()
    (folder / "lib" / "out").symlink_to("../../outside/b.py")
    with pytest.raises(InputError, match=r"write 'alias/' into \.herringboneignore to leave the folder out"):
        names(folder)
    (folder / "lib" / "out").unlink()
    (folder / "lib" / "up").symlink_to("..")
    with pytest.raises(InputError, match=r"/up is a link to .*/src, a folder that contains the link"):
        names(folder)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(write):
    folder = write({"src/a.py": ""})
    (folder / "a.py").chmod(0)
    with pytest.raises(InputError, match=r"a\.py cannot be read: Permission denied"):
        names(folder)


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_python_environments_are_left_out(write, mark):
    """The links of an environment led from one error to the next, and then 1,514 files were copied for each job."""
    folder = write({f"src/.venv/{mark}": "", "src/.venv/a.py": "", f"outside/env/{mark}": "", "src/lib/a.py": ""})
    (folder / ".venv" / "python").symlink_to("/usr/bin/python3")
    (folder / "lib" / "linked").symlink_to("../../outside/env")
    source = find_source("train.py", str(folder), (), base=folder.parent)
    assert list(code_files(source, exclude=NO_HOME)) == ["lib/a.py", "train.py"]
    size = measure_code(source, exclude=NO_HOME)
    assert size.environments == (".venv", "lib/linked")
    assert size.notes == (
        "left out of the code, as Python environments: .venv/, lib/linked/; name packages in requirements.txt",
    )


def test_the_size_of_the_code_is_that_of_what_travels(write):
    folder = write({"src/train.py": "12345", "src/data/a": "123", "src/.gitignore": "ignored", "src/ignored": "1"})
    source = find_source("train.py", str(folder), (), base=folder.parent)
    size = measure_code(source, exclude=NO_HOME)
    assert str(size) == "3 files, 15 bytes"
    assert size.notes == ()
    assert measure_code(find_source("train.py", "code.tar.gz", (), base=folder), exclude=NO_HOME) is None


def test_large_code_is_named_with_its_largest_entries():
    sizes = {"train.py": 1000, "data/a": 600_000_000, "data/b": 300_000_000, "x.bin": 5000, "y.bin": 5000}
    (note,) = code_size(sizes).notes
    assert note.startswith(
        "the code has 5 files, 900.0 MB, and is copied for every job; largest: data/ 900.0 MB, x.bin 5.0 KB, y.bin 5.0"
    )
    assert CodeSize(files=1, bytes=100_000_000).notes == ()


@pytest.mark.parametrize(
    ("entry_point", "source_dir", "message"),
    [
        ("src", None, "/src is a folder; name the script in it: source_dir='src', entry_point='train.py'"),
        ("lib", "src", "/src/lib is a folder; name the script, as in 'lib/train.py'"),
    ],
)
def test_a_folder_as_entry_point_is_called_a_folder(write, entry_point, source_dir, message):
    folder = write({"src/lib/a.py": ""})
    with pytest.raises(InputError, match=message):
        check_source(find_source(entry_point, source_dir, (), base=folder.parent), exclude=NO_HOME)


def test_what_jobs_write_is_no_code(write):
    """A folder of results inside the code travelled with each later job, and grew with each."""
    folder = write(
        {"src/a.py": "", "src/out/one/output/model.tar.gz": "", "src/ck/1.pt": "", "src/tb/e": "", "lib/r/x": ""}
    )
    write({"lib/b.py": "", "src/keep/out/x": ""})
    source = find_source("train.py", str(folder), ("lib",), base=folder.parent)
    options = Options(
        output_path="src/out",
        checkpoint_s3_uri=f"file://{folder}/ck",
        track=("tensorboard:src/tb", "mlflow:http://host"),
        tensorboard_output_config=TensorBoardOutputConfig("lib/r"),
    )
    source = replace(source, results=result_folders(options, source, base=folder.parent))
    assert list(code_files(source, exclude=NO_HOME)) == ["a.py", "keep/out/x", "lib/b.py", "train.py"]


def test_results_next_to_the_code_are_no_code(write):
    folder = write({"src/job-1/output/model.tar.gz": "", "src/job-2/output/model/x": "", "src/lib/output/a.py": ""})
    source = find_source("train.py", str(folder), (), base=folder.parent)
    source = replace(source, results=result_folders(Options(output_path="src"), source, base=folder.parent))
    assert list(code_files(source, exclude=NO_HOME)) == ["lib/output/a.py", "train.py"]


@pytest.mark.parametrize("swapped", ["lib", "lib/a.py"])
def test_a_file_that_becomes_a_link_out_of_the_folder_does_not_travel(write, tmp_path, swapped):
    """A job whose checkpoints lie in the folder can do this while the next job's code is copied."""
    folder = write({"src/lib/a.py": "code", "secret/a.py": "secret", "src/other/a.py": "code"})
    source = find_source("train.py", str(folder), (), base=tmp_path)
    path = code_files(source, exclude=NO_HOME)["lib/a.py"]
    place = located(source, path)
    target = (tmp_path / "secret" / Path(swapped).relative_to("lib")).resolve()
    (folder / swapped).rename(tmp_path / "moved")
    (folder / swapped).symlink_to(target)
    # Whether it happens before the file is located, or after.
    for found in (place, located(source, path)):
        with pytest.raises(OSError, match=r"it is a link|it leads out of its folder"):
            safe_tree.open_file(*found)
    (folder / swapped).unlink()
    # Links inside of the folder are files of the code, also where a folder above is one.
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "a.py").symlink_to("../other/a.py")
    (tmp_path / "linked").symlink_to("src")
    copy_source(find_source("train.py", "linked", (), base=tmp_path), tmp_path / "code", exclude=NO_HOME)
    assert (tmp_path / "code" / "lib" / "a.py").read_text() == "code"
    assert not (tmp_path / "code" / "lib" / "a.py").is_symlink()
