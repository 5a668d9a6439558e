"""Logins and proxies of the `docker` command."""

import base64
import json

import pytest

from herringbone.engine.docker_settings import login_header, proxy_variables, registry_login


def settings(folder, **members):
    (folder / "config.json").write_text(json.dumps(members))
    return folder


def stored(user, password):
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("registry", "address"),
    [
        ("registry:5000", "registry:5000"),
        ("registry:5000", "https://registry:5000/v1/"),
        ("docker.io", "https://index.docker.io/v1/"),
    ],
)
def test_a_stored_login_is_found_by_its_host(tmp_path, registry, address):
    folder = settings(tmp_path, auths={"other": stored("x", "y"), address: stored("me", "a:b")})
    login = registry_login(registry, folder)
    assert (login["username"], login["password"]) == ("me", "a:b")


def test_without_a_login_there_is_none(tmp_path):
    assert registry_login("registry:5000", tmp_path) == {}
    assert registry_login("registry:5000", settings(tmp_path, auths={"registry:5000": {}})) == {}
    assert json.loads(base64.urlsafe_b64decode(login_header({})["X-Registry-Auth"])) == {}


@pytest.mark.parametrize(
    ("answer", "login"),
    [
        ({"Username": "me", "Secret": "s"}, {"username": "me", "password": "s", "serveraddress": "registry:5000"}),
        ({"Username": "<token>", "Secret": "s"}, {"identitytoken": "s", "serveraddress": "registry:5000"}),
    ],
)
def test_a_credential_program_is_asked_first(tmp_path, monkeypatch, answer, login):
    program = tmp_path / "docker-credential-test"
    program.write_text(f"#!/bin/sh\ntest \"$1 $(cat)\" = 'get registry:5000' && echo '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = settings(tmp_path, credHelpers={"registry:5000": "test"}, auths={"registry:5000": stored("x", "y")})
    assert registry_login("registry:5000", folder) == login


def test_a_program_without_a_login_leaves_the_stored_one(tmp_path):
    folder = settings(tmp_path, credsStore="not-installed", auths={"registry:5000": stored("x", "y")})
    assert registry_login("registry:5000", folder)["username"] == "x"


def test_proxies_become_variables_in_both_spellings(tmp_path):
    folder = settings(tmp_path, proxies={"default": {"httpsProxy": "http://proxy:3128", "noProxy": "a,b"}})
    assert proxy_variables(folder) == {
        "https_proxy": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "a,b",
        "NO_PROXY": "a,b",
    }
    assert proxy_variables(settings(tmp_path)) == {}
