"""boto3 against the front of a folder, over a real connection."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

boto3 = pytest.importorskip("boto3")
uvicorn = pytest.importorskip("uvicorn")

from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

from herringbone.s3.front.app import make_app  # noqa: E402
from herringbone.s3.front.refusals import HttpRequest, S3Error, Signer  # noqa: E402

SECRET = "secret"  # noqa: S105


def verifier(request: HttpRequest) -> Signer:
    """Return the signer by the signature's own scope; the signature itself is another room's."""
    headers = dict(request.headers)
    text = headers.get("authorization", "")
    if "X-Amz-Signature" in request.query:
        return Signer("me")
    if "Credential=me/" not in text:
        raise S3Error("AccessDenied", "Access Denied", 403)
    scope = text.partition("Credential=me/")[2].partition(",")[0]
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return Signer("me", key, scope, headers["x-amz-date"], text.partition("Signature=")[2])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("front")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(folder, verifier), log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started, 60)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", folder
    server.should_exit = True
    thread.join(30)
    listener.close()


@pytest.fixture(scope="module")
def client(address: tuple[str, Path]) -> Any:
    session = boto3.Session(aws_access_key_id="me", aws_secret_access_key=SECRET, region_name="us-east-1")
    # By default, boto3 presigns with version 2, which AWS no longer takes in its newer regions.
    client = session.client("s3", endpoint_url=address[0], config=Config(signature_version="s3v4"))
    client.create_bucket(Bucket="mine")
    return client


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_an_object_is_a_file(client: Any, address: tuple[str, Path]) -> None:
    answer = client.put_object(
        Bucket="mine", Key="data/a b.csv", Body=b"abc", ContentType="text/csv", Metadata={"from": "me"}
    )
    assert answer["ETag"] == '"900150983cd24fb0d6963f7d28e17f72"'
    assert (address[1] / "mine/data/a b.csv").read_bytes() == b"abc"
    got = client.get_object(Bucket="mine", Key="data/a b.csv", Range="bytes=1-")
    assert (got["Body"].read(), got["ContentRange"], got["ContentType"]) == (b"bc", "bytes 1-2/3", "text/csv")
    head = client.head_object(Bucket="mine", Key="data/a b.csv")
    assert (head["ContentLength"], head["Metadata"], head["ETag"]) == (3, {"from": "me"}, answer["ETag"])
    # A file that came by other means is an object, too.
    (address[1] / "mine/data/own.txt").write_bytes(b"abc")
    assert client.head_object(Bucket="mine", Key="data/own.txt")["ETag"] == answer["ETag"]
    client.copy_object(Bucket="mine", Key="copy", CopySource={"Bucket": "mine", "Key": "data/a b.csv"})
    assert client.head_object(Bucket="mine", Key="copy")["Metadata"] == {"from": "me"}
    with pytest.raises(ClientError) as conflict:
        client.put_object(Bucket="mine", Key="copy", Body=b"", IfNoneMatch="*")
    assert code(conflict) == "PreconditionFailed"
    for key in ("data/a b.csv", "data/own.txt", "copy", "absent"):
        client.delete_object(Bucket="mine", Key=key)
    assert [path.name for path in (address[1] / "mine").iterdir()] == [".herringbone"]
    with pytest.raises(ClientError) as missing:
        client.get_object(Bucket="mine", Key="copy")
    assert code(missing) == "NoSuchKey"


def test_large_files_go_in_parts_and_nothing_else_is_left(client: Any, address: tuple[str, Path]) -> None:
    from boto3.s3.transfer import TransferConfig

    content = os.urandom(12 << 20)
    config = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    client.upload_fileobj(io.BytesIO(content), "mine", "large.bin", Config=config)
    assert client.head_object(Bucket="mine", Key="large.bin")["ETag"].endswith('-3"')
    target = io.BytesIO()
    client.download_fileobj("mine", "large.bin", target, Config=config)
    assert target.getvalue() == content
    own = address[1] / "mine/.herringbone"
    assert not any((own / "uploads").iterdir())
    assert not any((own / "new").iterdir())
    client.delete_objects(Bucket="mine", Delete={"Objects": [{"Key": "large.bin"}, {"Key": "absent"}]})
    upload = client.create_multipart_upload(Bucket="mine", Key="p")["UploadId"]
    part = client.upload_part(Bucket="mine", Key="p", UploadId=upload, PartNumber=1, Body=b"x")
    assert [each["Size"] for each in client.list_parts(Bucket="mine", Key="p", UploadId=upload)["Parts"]] == [1]
    wrong = {"Parts": [{"PartNumber": 2, "ETag": part["ETag"]}]}
    with pytest.raises(ClientError) as invalid:
        client.complete_multipart_upload(Bucket="mine", Key="p", UploadId=upload, MultipartUpload=wrong)
    assert code(invalid) == "InvalidPart"
    client.abort_multipart_upload(Bucket="mine", Key="p", UploadId=upload)
    with pytest.raises(ClientError) as gone:
        client.upload_part(Bucket="mine", Key="p", UploadId="../../mine", PartNumber=1, Body=b"x")
    assert code(gone) == "NoSuchUpload"


def test_any_key_stays_in_its_bucket_and_pages_are_in_order(client: Any, address: tuple[str, Path]) -> None:
    client.create_bucket(Bucket="odd-keys")
    keys = ["../../up", "./a", "a", "a-b", "a/", "a//b", "a/b", "a/b/c", "ä/€", "b%2Fc", "x\x01y", ".hidden/z", "a+b c"]
    for key in keys:
        client.put_object(Bucket="odd-keys", Key=key, Body=key.encode())
    ordered = sorted(keys, key=str.encode)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="odd-keys", PaginationConfig={"PageSize": 4})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == ordered
    for key in keys:
        assert client.get_object(Bucket="odd-keys", Key=key)["Body"].read() == key.encode()
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="odd-keys", Delimiter="/", Prefix="a", PaginationConfig={"PageSize": 1}
    )
    entries = [
        entry.get("Key", entry.get("Prefix"))
        for page in pages
        for entry in (*page.get("Contents", ()), *page.get("CommonPrefixes", ()))
    ]
    assert entries == ["a", "a+b c", "a-b", "a/"]
    assert sorted(path.name for path in address[1].iterdir()) == ["mine", "odd-keys"]
    with pytest.raises(ClientError) as full:
        client.delete_bucket(Bucket="odd-keys")
    assert code(full) == "BucketNotEmpty"
    for key in keys:
        client.delete_object(Bucket="odd-keys", Key=key)
    client.delete_bucket(Bucket="odd-keys")
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["mine"]


def test_presigned_addresses_work_without_a_header(client: Any) -> None:
    put = client.generate_presigned_url("put_object", {"Bucket": "mine", "Key": "signed"})
    urllib.request.urlopen(urllib.request.Request(put, b"abc", method="PUT"), timeout=60).close()  # noqa: S310
    options = {"Bucket": "mine", "Key": "signed", "ResponseContentType": "text/plain"}
    with urllib.request.urlopen(client.generate_presigned_url("get_object", options), timeout=60) as got:  # noqa: S310
        assert (got.read(), got.headers["content-type"]) == (b"abc", "text/plain")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(put.partition("?")[0], timeout=60)  # noqa: S310
    assert refused.value.code == 403
    refused.value.close()


def test_a_body_that_is_not_what_was_signed_leaves_no_object(client: Any, address: tuple[str, Path]) -> None:
    with pytest.raises(ClientError) as wrong:
        client.put_object(Bucket="mine", Key="torn", Body=b"abc", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    assert code(wrong) == "BadDigest"
    # The client announces more than it sends.
    host = address[0].removeprefix("http://")
    with socket.create_connection((host.partition(":")[0], int(host.partition(":")[2])), timeout=60) as connection:
        url = client.generate_presigned_url("put_object", {"Bucket": "mine", "Key": "torn"}).removeprefix(address[0])
        connection.sendall(f"PUT {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\nabc".encode())
    wait_until(lambda: not any((address[1] / "mine/.herringbone/new").iterdir()), 60)
    assert not any((address[1] / "mine/.herringbone/new").iterdir())
    assert "Contents" not in client.list_objects_v2(Bucket="mine", Prefix="torn")
    with pytest.raises(ClientError) as refused:
        client.get_object_acl(Bucket="mine", Key="torn")
    assert code(refused) == "NotImplemented"


def test_an_upload_that_stops_is_refused(
    client: Any, address: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herringbone.s3.front.body.SILENCE_SECONDS", 0.2)
    head = (
        "PUT /mine/half HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nX-Amz-Date: x\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=me/d/r/s3/aws4_request, Signature=x\r\n\r\n"
    )
    host, _, port = address[0].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + b"half")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"<Code>RequestTimeout</Code>" in answer
    with pytest.raises(ClientError):
        client.head_object(Bucket="mine", Key="half")


def test_a_plus_in_a_query_is_a_plus(client: Any, address: tuple[str, Path]) -> None:
    """In forms it is a space, and clients other than boto3 leave it as it is."""
    client.create_bucket(Bucket="plus")
    for key in ("a+b", "a b"):
        client.put_object(Bucket="plus", Key=key)
    url = client.generate_presigned_url("list_objects_v2", {"Bucket": "plus"})
    with urllib.request.urlopen(f"{url}&prefix=a+b") as answer:  # noqa: S310 - loopback
        keys = answer.read().decode()
    # boto3 has asked for encoded names.
    assert "<Key>a%2Bb</Key>" in keys
    assert keys.count("<Key>") == 1
