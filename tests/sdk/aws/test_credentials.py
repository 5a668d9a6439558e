"""AWS's files on this machine: what is wrong with them, without a secret and without a wait."""

import os

import pytest

from herringbone.aws.credentials import find_credentials, find_region, problem_of_files, stands_in
from herringbone.aws.errors import translate_error

FILES = {
    b"[default]\naws_access_key_id = a\nwJalr/PLANTED\n": ", line 3: no [profile] and no `name = value` below one",
    b"aws_access_key_id = a\n": ", line 1: no [profile] and no `name = value` below one",
    b"[default]\nregion = a\n[default]\n": ", line 3: it stands there for the second time",
    b"[default]\nregion = a\nregion = b\n": ", line 3: it stands there for the second time",
    b"[default]\nregion = \xff\xfe\n": " is not in UTF-8",
}


@pytest.fixture
def environ(tmp_path):
    return {"AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}


@pytest.mark.parametrize("content", FILES)
def test_a_file_with_a_mistake_is_named_with_its_line(environ, tmp_path, content):
    """boto names the file alone, and folders stood in for the account's buckets."""
    path = tmp_path / "credentials"
    path.write_bytes(content)
    problem = problem_of_files(environ)
    assert problem == f"{path}{FILES[content]}; correct it, or move it away"
    assert (find_credentials(environ), find_region(environ), stands_in(environ, None)) == (None, None, False)
    error = type("ConfigParseError", (Exception,), {})("Unable to parse config file")
    assert str(translate_error(error, "to look at bucket b", files=problem)) == f"to look at bucket b: {problem}"
    assert "PLANTED" not in problem


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_named_and_not_waited_for(environ, tmp_path, make):
    """It was "no AWS credentials were found", and a FIFO was waited for."""
    make(tmp_path / "credentials")
    assert problem_of_files(environ) == f"{tmp_path}/credentials is no file; correct it, or move it away"
    assert find_credentials(environ) is None


def test_files_that_are_not_there_are_no_problem(environ):
    assert problem_of_files(environ) == ""
    assert stands_in(environ, None)
