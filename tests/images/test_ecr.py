"""A push to ECR: moto serves the API, and Debian's docker-registry, behind a password, stores the image."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.aws_mock import log_in, mock_aws

from herringbone.aws.session import AwsSession
from herringbone.images.push import Ecr, push
from herringbone_contract.errors import AwsAccessError, ImageError

REGION = "eu-central-1"
ADDRESS = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/team"
REPOSITORY = "team/herringbone-test"
# The password in moto's token, and its bcrypt hash for the registry.
PASSWORD = "123456789012-auth-token"  # noqa: S105 - the mock's
HASHED = "$2b$04$tTHGEuUhSpCeNyD0Mpztt.rNt/SG2xLvdvUvUwtkHlAI0k4vvFmdy"
CONFIGURATION = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: ecr, path: {folder}/passwords}}}}
"""


class Denying:
    """A client of boto3 whose account lacks some permissions."""

    def __init__(self, client: Any, *denied: str) -> None:
        self._client, self._denied = client, denied

    def __getattr__(self, name: str) -> Any:
        if name not in self._denied:
            return getattr(self._client, name)
        from botocore.exceptions import ClientError

        operation = "".join(word.title() for word in name.split("_"))
        message = f"User: arn:aws:iam::123456789012:user/ann is not authorized to perform: ecr:{operation}"

        def refuse(**_: Any) -> None:
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": message}}, operation)

        return refuse


class DeniedSession(AwsSession):
    def __init__(self, *denied: str) -> None:
        super().__init__(region=REGION)
        self.denied = denied

    def client(self, service: str, *, region: str | None = None) -> Any:
        return Denying(super().client(service, region=region), *self.denied)


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mock_aws(tmp_path_factory.mktemp("ecr") / "log") as address:
        yield address


@pytest.fixture
def session(mock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsSession:
    log_in(mock, tmp_path, monkeypatch, DOCKER_CONFIG=str(tmp_path / "docker"))
    return AwsSession(region=REGION)


@pytest.fixture
def host(tmp_path: Path, registry_program: str) -> Iterator[str]:
    """The address of a registry that asks for ECR's password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "passwords").write_text(f"AWS:{HASHED}\n")
    (tmp_path / "registry.yml").write_text(CONFIGURATION.format(folder=tmp_path, port=port))
    with subprocess.Popen([registry_program, "serve", tmp_path / "registry.yml"], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/")
            except urllib.error.HTTPError as refusal:
                refusal.close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        server.terminate()


def manifest(host: str, reference: str) -> str:
    """Return the manifest that the registry stores."""
    opener = urllib.request.build_opener(
        urllib.request.HTTPBasicAuthHandler(passwords := urllib.request.HTTPPasswordMgrWithDefaultRealm())
    )
    passwords.add_password(None, f"http://{host}", "AWS", PASSWORD)
    request = urllib.request.Request(
        f"http://{host}/v2/{REPOSITORY}/manifests/{reference}",
        headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
    )
    with opener.open(request) as answer:
        return answer.read().decode()


@pytest.mark.docker
def test_a_push_makes_the_repository_logs_in_and_is_not_repeated(
    engine, own_engine, host, session, import_image, tmp_path
) -> None:
    image = import_image({"hello": b"ecr"})
    tag = image.partition(":")[2]
    lines: list[str] = []
    pushed = push(own_engine, image, Ecr(ADDRESS, session, host=host), lines.append)
    assert pushed.startswith(f"{host}/{REPOSITORY}@sha256:")
    assert lines[0] == f"made the repository {REPOSITORY}"
    client = session.client("ecr")
    repository = client.describe_repositories(repositoryNames=[REPOSITORY])["repositories"][0]
    assert (repository["imageTagMutability"], repository["imageScanningConfiguration"]) == (
        "IMMUTABLE",
        {"scanOnPush": True},
    )

    # Tell moto about the image that the registry stored.
    client.put_image(repositoryName=REPOSITORY, imageManifest=manifest(host, tag), imageTag=tag)
    digest = client.describe_images(repositoryName=REPOSITORY)["imageDetails"][0]["imageDigest"]
    lines.clear()
    assert push(own_engine, image, Ecr(ADDRESS, session, host=host), lines.append) == f"{host}/{REPOSITORY}@{digest}"
    assert lines == [f"{host}/{REPOSITORY}:{tag} is there already"]

    other_image = import_image({"hello": b"another"})
    engine.tag(other_image, "herringbone-test", tag, force=True)
    with pytest.raises(ImageError, match=r"there already, with another image \(sha256:.*immutable; give the image ano"):
        push(own_engine, image, Ecr(ADDRESS, session, host=host), lines.append)
    engine.remove_image(f"{host}/{REPOSITORY}:{tag}")
    # The token appears in no line and no file.
    assert not any(PASSWORD in line for line in lines)
    assert not (tmp_path / "docker").exists()


@pytest.mark.docker
def test_a_refused_login_names_the_permissions(engine, own_engine, host, session, import_image) -> None:
    class WrongToken(Ecr):
        def login(self) -> dict[str, str]:
            return {"username": "AWS", "password": "wrong"}

    image = import_image({"hello": b"wrong"})
    with pytest.raises(ImageError, match=r"cannot be pushed: .*; the caller needs ecr:BatchCheckLayerAvailability, "):
        push(own_engine, image, WrongToken(ADDRESS, session, host=host), lambda line: None)
    engine.remove_image(f"{host}/team/{image}")


@pytest.mark.parametrize(
    ("denied", "message"),
    [
        ("describe_repositories", "ecr:DescribeRepositories"),
        (
            "create_repository",
            r"ecr:CreateRepository.*aws ecr create-repository --region eu-central-1 ",
        ),
    ],
)
def test_a_missing_permission_for_a_repository_is_named(session, denied: str, message: str) -> None:
    with pytest.raises(AwsAccessError, match=message):
        Ecr(ADDRESS, DeniedSession(denied)).make_repository("team/a", lambda line: None)


def test_a_missing_permission_for_the_login_is_named(session) -> None:
    with pytest.raises(AwsAccessError, match=r"to log in to ECR: access denied: .*ecr:GetAuthorizationToken"):
        Ecr(ADDRESS, DeniedSession("get_authorization_token")).login()


def test_a_tag_that_may_change_is_free(session) -> None:
    client = session.client("ecr")
    client.create_repository(repositoryName="team/a", imageTagMutability="MUTABLE")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    body = {"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:aa"}, "layers": []}
    client.put_image(repositoryName="team/a", imageManifest=json.dumps(body), imageTag="1")
    ecr = Ecr(ADDRESS, session)
    assert ecr.find("team/a", "1", "sha256:bb") is None
    assert str(ecr.find("team/a", "1", "sha256:aa")).startswith("sha256:")
    assert ecr.find("team/a", "2", "sha256:bb") is None


@pytest.mark.parametrize(
    ("address", "repository"),
    [
        (f"123456789012.dkr.ecr.{REGION}.amazonaws.com", "pytorch"),
        (f"{ADDRESS}/", "team/pytorch"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/a/b", "a/b/pytorch"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "pytorch"),
    ],
)
def test_addresses_of_ecr(address: str, repository: str) -> None:
    ecr = Ecr.at(address)
    assert ecr is not None
    assert (ecr.host, ecr.repository("pytorch")) == (address.partition("/")[0], repository)


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "ghcr.io/team", "public.ecr.aws/team", "evil.com/1.dkr.ecr"])
def test_other_addresses(address: str) -> None:
    assert Ecr.at(address) is None
