"""Code from a git repository: the commit that is fetched, and where a token may appear."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from herringbone import Estimator, InputError, OptionError
from herringbone.code.git import fetch_code
from herringbone.plan.git import GitConfig
from herringbone_contract.constants import MASK

TOKEN = "planted-token"  # noqa: S105
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", folder, *AUTHOR, *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits on main and a third on `other`; src/train.py prints the name of its commit."""
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "src").mkdir()
    for branch, word in (("main", "first"), ("main", "second"), ("other", "third")):
        git(folder, "checkout", "--quiet", "-B", branch)
        (folder / "src" / "train.py").write_text(f"print('{word}')\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", word)
    git(folder, "checkout", "--quiet", "main")
    return folder


def word(repo: str | Path, into: Path, **settings: str) -> str:
    code = fetch_code(GitConfig(str(repo), **settings), into)
    return (code.folder / "src" / "train.py").read_text().split("'")[1]


@pytest.mark.parametrize(
    ("branch", "commit", "expected"),
    [(None, None, "second"), ("other", None, "third"), (None, "main~1", "first"), ("other", "main~1", "first")],
)
def test_branch_and_commit_select_the_commit(repo, tmp_path, branch, commit, expected):
    names = {"branch": branch, "commit": commit and git(repo, "rev-parse", commit)}
    settings = {name: value for name, value in names.items() if value is not None}
    assert word(repo, tmp_path, **settings) == expected


def test_a_short_hash_is_found(repo, tmp_path):
    assert word(repo, tmp_path, commit=git(repo, "rev-parse", "--short=8", "other")) == "third"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"branch": "gone"}, "at gone cannot be fetched: fatal: couldn't find remote ref gone"),
        ({"commit": "0" * 40}, "at 0000.* cannot be fetched"),
        ({"branch": "main", "commit": "other"}, "is not on main"),
    ],
)
def test_a_missing_branch_or_commit_is_reported_with_gits_message(repo, tmp_path, settings, message):
    if settings.get("commit") == "other":
        settings = {**settings, "commit": git(repo, "rev-parse", "other")}
    with pytest.raises(InputError, match=f"git_config: {repo} {message}|git_config: {repo} at .* {message}"):
        fetch_code(GitConfig(str(repo), **settings), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repo": "https://me:secret@host/x"}, "git_config: repo names a user or a secret.* write https://host/x, and"),
        ({"repo": "https://token@host/x"}, "git_config: repo names a user or a secret"),
        ({"repo": "ext::sh -c true"}, "git_config: repo 'ext::sh -c true' is no address"),
        ({"repo": "--upload-pack=x"}, "is no address of a repository"),
        ({"repo": "r", "branch": "--all"}, "branch '--all' is no name"),
        ({"repo": "r", "branch": "a:b"}, "branch 'a:b' is no name"),
        ({"repo": "r", "commit": "HEAD"}, "commit 'HEAD' is no hash"),
        ({"repo": "git@host:x", "token": TOKEN}, "password and token are for https"),
        ({"repo": "https://h/x", "password": TOKEN}, "needs username next to password"),
        ({"repo": "https://h/x", "username": "a", "password": TOKEN, "2FA_enabled": True}, "needs a token"),
        ({"repo": "https://h/x", "tokens": TOKEN}, "git_config: no such key 'tokens', did you mean 'token'"),
        ({"branch": "main"}, "git_config: the key 'repo' is missing"),
    ],
)
def test_wrong_settings_are_refused_by_the_constructor(settings, message):
    with pytest.raises(OptionError, match=message) as caught:
        Estimator("train.py", instance_type="local_process", git_config=settings)
    assert TOKEN not in str(caught.value)


def test_a_plan_names_the_commit_and_takes_the_repositorys_files(repo):
    arguments = {
        "source_dir": "src",
        "instance_type": "local_process",
        "git_config": {"repo": str(repo), "branch": "other"},
    }
    plan = Estimator("train.py", **arguments).plan()
    assert plan.source.revision == f"{repo}@{git(repo, 'rev-parse', 'other')}"
    assert f"train.py in {plan.source.revision}" in str(plan)
    # `attach` needs the arguments as the user wrote them, not the path of the checkout.
    assert (plan.arguments.entry_point, plan.arguments.source_dir) == ("train.py", "src")
    assert not Path(plan.source.folder).exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entry_point": "gone.py"}, "entry_point: .*gone.py: no such file"),
        ({"entry_point": "train.py", "source_dir": "../x"}, r"\.\./x is not in the repository of git_config"),
        ({"entry_point": "src/train.py", "dependencies": ["/etc"]}, "etc is not in the repository of git_config"),
        ({"entry_point": "a.py", "source_dir": "c.tar.gz"}, "c.tar.gz together with git_config"),
    ],
)
def test_code_stays_inside_the_repository(repo, settings, message):
    with pytest.raises(InputError, match=message):
        Estimator(instance_type="local_process", git_config={"repo": str(repo)}, **settings).plan()


class GitServer(BaseHTTPRequestHandler):
    """Serves a repository with git's own CGI program to clients that send the token."""

    root: Path

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        expected = base64.b64encode(f"me:{TOKEN}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {expected}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        url = urlsplit(self.path)
        variables = {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
        }
        run = subprocess.run(
            ["git", "http-backend"], input=body, env={**os.environ, **variables}, capture_output=True, check=True
        )
        head, _, content = run.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().splitlines():
            self.send_header(*line.split(": ", 1))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep the test's output free of request lines."""


@pytest.fixture
def address(repo: Path) -> Iterator[str]:
    """The HTTP address of the repository."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Open", (GitServer,), {"root": repo}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/.git"
    server.shutdown()
    server.server_close()


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `git`, first on PATH, that writes its arguments to a file."""
    real = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    notes = tmp_path / "arguments"
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "git"
    program.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$*" >> {notes}\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return notes


def test_a_token_reaches_the_server_and_no_argument_or_file(address, traced, tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    assert word(address, into, username="me", token=TOKEN) == "second"
    assert "fetch --quiet --depth=1" in traced.read_text()
    assert TOKEN not in traced.read_text()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != traced]
    assert len(files) > 3
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)


def test_without_the_token_git_does_not_prompt(address, tmp_path):
    with pytest.raises(InputError, match="cannot be fetched: fatal: could not read Username"):
        fetch_code(GitConfig(address), tmp_path)


def test_a_wrong_token_is_not_shown(address, tmp_path):
    with pytest.raises(InputError, match="Authentication failed") as caught:
        fetch_code(GitConfig(address, username="me", token=TOKEN[::-1]), tmp_path)
    assert TOKEN[::-1] not in str(caught.value)


def test_a_stored_plan_has_no_token(repo, address):
    settings = {"repo": address, "username": "me", "token": TOKEN}
    plan = Estimator("src/train.py", instance_type="local_process", git_config=settings).plan()
    assert TOKEN not in str(plan.to_dict())
    assert plan.to_dict()["options"]["git_config"]["token"] == MASK
