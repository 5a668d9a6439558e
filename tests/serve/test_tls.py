"""The service behind TLS: clients check its certificate, and those that do not trust it send nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError, ConnectionClosedError, SSLError  # noqa: E402

from tests.serve.test_live import Running, request, wait  # noqa: E402

# Making keys takes seconds of a busy processor.
pytestmark = pytest.mark.timeout(400)


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Make an authority and return its certificate and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ("-subj", f"/CN={name}", "-days", "2", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *subject)
    return certificate, key


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    """A service, and the certificates of its authority and of another one."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    own, own_key = authority(folder, "own")
    other, _ = authority(folder, "other")
    key, request_file, leaf, names = (folder / name for name in ("leaf.key", "leaf.csr", "leaf.pem", "names"))
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request_file, "-subj", "/CN=service")
    signer = ("-CA", own, "-CAkey", own_key, "-CAcreateserial", "-extfile", names, "-days", "2")
    openssl("x509", "-req", "-in", request_file, "-out", leaf, *signer)
    running = Running(tmp_path_factory.mktemp("service"), tls=(leaf, key))
    yield running, own, other
    running.end()
    assert "Traceback" not in (running.folder / "service.log").read_text()


def client(running, name, verify, address=None):
    session = boto3.Session(running.ada.key_id, running.ada.secret, region_name="us-east-1")
    config = Config(retries={"mode": "standard", "total_max_attempts": 1})
    return session.client(name, endpoint_url=address or running.address, verify=str(verify), config=config)


def test_boto3_trains_through_tls(trusted):
    running, own, _ = trusted
    assert running.address.startswith("https://")
    client(running, "s3", own).put_object(Bucket="mine", Key="data/points", Body=b"1 2 3")
    sagemaker = client(running, "sagemaker", own)
    sagemaker.create_training_job(**request("through-tls"))
    wait(sagemaker, "through-tls", "Completed")
    with pytest.raises(ClientError, match="not found"):
        sagemaker.describe_training_job(TrainingJobName="another")


def test_a_client_that_does_not_trust_the_certificate_sends_nothing(trusted):
    running, own, other = trusted
    audit = running.folder / "home" / "service" / "audit.log"
    before = audit.read_text() if audit.exists() else ""
    for name in ("sagemaker", "s3"):
        call = {"sagemaker": "list_training_jobs", "s3": "list_buckets"}[name]
        with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            getattr(client(running, name, other), call)()
    # The certificate is for an address, not for a name that leads to the same port.
    with pytest.raises(SSLError, match="localhost"):
        client(running, "sagemaker", own, running.address.replace("127.0.0.1", "localhost")).list_training_jobs()
    # Text without TLS gets no answer, so no signed call travels openly.
    with pytest.raises(ConnectionClosedError):
        client(running, "sagemaker", own, running.address.replace("https", "http")).list_training_jobs()
    assert (audit.read_text() if audit.exists() else "") == before
