"""The commit of a job's code."""

import subprocess

import pytest

from herringbone.code.commit import CommitQuery, parse_status
from herringbone.plan.source import SourceCode


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Runs git in a repository with one commit."""
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "me")
    # A hook of git itself sets these.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    def run(*words):
        environment = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
        return subprocess.run(["git", "--git-dir", ".git", "--work-tree", ".", *words], **environment).stdout.strip()

    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("1")
    run("init", "--quiet")
    run("add", ".")
    run("commit", "--quiet", "-m", "first")
    return run


def answer(source):
    return CommitQuery(source).answer()


def test_the_commit_and_whether_files_differ(git, tmp_path):
    folder = SourceCode(entry_point="train.py", folder=str(tmp_path / "src"), whole_folder=True)
    script = SourceCode(entry_point="train.py", folder=str(tmp_path / "src"))
    clean = {"Commit": git("rev-parse", "HEAD"), "Dirty": False}
    assert answer(folder) == answer(script) == clean
    # Neither a file outside of the folder nor, for a lone script, one next to it belongs to the job.
    (tmp_path / "notes").touch()
    assert answer(folder) == clean
    (tmp_path / "src/new.py").touch()
    assert answer(folder) == {**clean, "Dirty": True}
    assert answer(script) == clean
    (tmp_path / "src/train.py").write_text("2")
    assert answer(script) == {**clean, "Dirty": True}
    CommitQuery(script).cancel()


def test_code_without_a_commit(tmp_path, monkeypatch):
    source = SourceCode(entry_point="train.py", folder=str(tmp_path))
    assert answer(source) == answer(None) == {}
    (tmp_path / ".git").mkdir()
    assert answer(source) == {}
    monkeypatch.setenv("PATH", "")
    assert answer(source) == {}
    assert parse_status("# branch.oid (initial)\n") == {}
    assert CommitQuery(source).is_pointless
    CommitQuery(source).cancel()


def test_code_from_git_config_names_its_repository():
    source = SourceCode(entry_point="a", folder="/gone", revision="ssh://git@host/model@5f70bf18")
    assert answer(source) == {"Repository": "ssh://git@host/model", "Commit": "5f70bf18", "Dirty": False}
