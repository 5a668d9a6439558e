"""Conditions of requests to the front of S3, and members that count or are refused."""
# Parameters have the names of fixtures of another file.
# ruff: noqa: F811

from __future__ import annotations

import os
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("uvicorn")

from botocore.exceptions import ClientError  # noqa: E402
from tests.sdk.s3.test_front import address, client, code  # noqa: E402, F401

from herringbone.s3.front.conditions import Conditions, Facts  # noqa: E402
from herringbone.s3.front.operations import _GROUPS, OPERATIONS, find_operation  # noqa: E402
from herringbone.s3.front.refusals import S3Error  # noqa: E402
from herringbone.s3.front.store import Store  # noqa: E402

NO = '"00000000000000000000000000000000"'


def client_model() -> Any:
    return boto3.Session(region_name="us-east-1").client("s3").meta.service_model


def refused(call: Any, **members: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as error:
        call(Bucket="mine", **members)
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_conditions_of_writes_hold_or_nothing_changes(client: Any) -> None:
    etag = client.put_object(Bucket="mine", Key="k", Body=b"old")["ETag"]
    failed = ("PreconditionFailed", 412)
    calls: list[tuple[Any, dict[str, Any]]] = [
        (client.put_object, {"Body": b"new"}),
        (client.delete_object, {}),
        (client.copy_object, {"CopySource": "mine/k"}),
    ]
    for call, members in calls:
        assert refused(call, Key="k", IfMatch=NO, **members) == failed
        assert refused(call, Key="k", IfMatch=f"W/{etag}", **members) == failed
        if call != client.delete_object:
            assert refused(call, Key="k", IfNoneMatch="*", **members) == failed
            assert refused(call, Key="k", IfNoneMatch=NO, **members) == ("NotImplemented", 501)
            assert refused(call, Key="none", IfMatch="*", **members) == ("NoSuchKey", 404)
    upload = client.create_multipart_upload(Bucket="mine", Key="k")["UploadId"]
    sent = client.upload_part(Bucket="mine", Key="k", UploadId=upload, PartNumber=1, Body=b"new")["ETag"]
    parts: dict[str, Any] = {
        "Key": "k",
        "UploadId": upload,
        "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": sent}]},
    }
    assert refused(client.complete_multipart_upload, **parts, IfNoneMatch="*") == failed
    assert refused(client.complete_multipart_upload, **parts, IfMatch=NO) == failed
    assert refused(client.complete_multipart_upload, **parts, MpuObjectSize=4)[0] == "InvalidRequest"
    assert client.get_object(Bucket="mine", Key="k")["Body"].read() == b"old"
    # A failed condition has not used the upload up.
    client.complete_multipart_upload(Bucket="mine", **parts, IfMatch=etag, MpuObjectSize=3)
    new = client.head_object(Bucket="mine", Key="k")["ETag"]
    deleted = client.delete_objects(Bucket="mine", Delete={"Objects": [{"Key": "k", "ETag": etag}]})
    assert [error["Code"] for error in deleted["Errors"]] == ["PreconditionFailed"]
    client.delete_object(Bucket="mine", Key="k", IfMatch=new)


def test_of_many_that_create_one_key_one_wins(client: Any) -> None:
    def create(number: int) -> bool:
        try:
            client.put_object(Bucket="mine", Key=f"lock-{number // 10}", Body=b"%d" % number, IfNoneMatch="*")
        except ClientError:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        won = list(pool.map(create, range(50)))
    assert [sum(won[first : first + 10]) for first in range(0, 50, 10)] == [1] * 5


def test_conditions_count_when_the_name_is_given(tmp_path: Path) -> None:
    """Not before: between a check and the rename another client may be faster."""
    store = Store(tmp_path)
    store.create_bucket("mine")
    with store.new_file("mine") as first, store.new_file("mine") as second:
        store.check("mine", "a", Conditions(none_match="*"))
        store.keep(first, "mine", "a", "0a", {}, conditions=Conditions(none_match="*"))
        with pytest.raises(S3Error, match="preconditions"):
            store.keep(second, "mine", "a", "0b", {}, conditions=Conditions(none_match="*"))
    assert store.facts("mine", "a").etag == "0a"


class ReadMeanwhile(Store):
    """A store whose object is read between the two changes of a write: its facts, and then its name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool = ThreadPoolExecutor()
        self.reads: list[Future[Facts]] = []

    def _write_facts(self, *arguments: Any) -> None:
        super()._write_facts(*arguments)
        if arguments[1].etag == "new-1":
            self.reads.append(self.pool.submit(self.facts, "mine", "k"))
            # The reader waits for the writer, or is done soon.
            wait(self.reads, timeout=0.5)


def test_a_read_during_a_write_sees_one_object_whole_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    store = ReadMeanwhile(tmp_path)
    kept = {}
    for etag, meta in (("old-1", {"x": "1"}), ("new-1", {"x": "2"})):
        with store.new_file("mine") as file:
            file.write(etag.encode())
            kept[etag] = store.keep(file, "mine", "k", etag, meta)
    assert store.reads[0].result() in kept.values()
    assert store.facts("mine", "k") == kept["new-1"]


def test_a_slow_read_of_a_file_that_came_by_other_means_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "k").write_bytes(b"by other means")
    store = Store(tmp_path)
    file, _ = store._find(tmp_path / "mine", "k")
    with file, store.new_file("mine") as new:
        kept = store.keep(new, "mine", "k", "new-1", {"x": "2"})
        assert store._computed_etag(tmp_path / "mine", "k", file) != kept.etag
    assert store.facts("mine", "k") == kept


def test_conditions_of_reads_and_of_sources(client: Any) -> None:
    etag = client.put_object(Bucket="mine", Key="k", Body=b"old")["ETag"]
    now = client.head_object(Bucket="mine", Key="k")["LastModified"]
    before, after = now - timedelta(seconds=60), now + timedelta(seconds=60)
    reads: list[tuple[dict[str, Any], int]] = [
        ({"IfMatch": NO}, 412),
        ({"IfUnmodifiedSince": before}, 412),
        ({"IfNoneMatch": etag}, 304),
        ({"IfModifiedSince": now}, 304),
        # A failed condition counts before what the client knows.
        ({"IfMatch": NO, "IfNoneMatch": etag}, 412),
        ({"PartNumber": 1}, 501),
        ({"VersionId": "1"}, 501),
    ]
    for members, status in reads:
        assert refused(client.get_object, Key="k", **members)[1] == status
        source = {f"CopySource{name}": value for name, value in members.items() if name.startswith("If")}
        if source:
            assert refused(client.copy_object, Key="l", CopySource="mine/k", **source) == ("PreconditionFailed", 412)
    # An ETag counts before a time.
    client.get_object(Bucket="mine", Key="k", IfMatch=etag, IfUnmodifiedSince=before)
    client.get_object(Bucket="mine", Key="k", IfNoneMatch=NO, IfModifiedSince=after)
    client.copy_object(Bucket="mine", Key="l", CopySource="mine/k", CopySourceIfMatch=etag)
    assert refused(client.copy_object, Key="l", CopySource="mine/k?versionId=1") == ("NotImplemented", 501)
    client.delete_object(Bucket="mine", Key="l")


def test_a_part_of_another_object_than_the_client_knows_is_the_whole(client: Any) -> None:
    etag = client.put_object(Bucket="mine", Key="ranged", Body=b"abcdef")["ETag"]
    url = client.generate_presigned_url("get_object", {"Bucket": "mine", "Key": "ranged"})
    for known, content in ((etag, b"bc"), (NO, b"abcdef")):
        request = urllib.request.Request(url, headers={"Range": "bytes=1-2", "If-Range": known})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as got:  # noqa: S310
            assert got.read() == content


def test_every_member_of_the_api_counts_or_is_refused() -> None:
    """By the model of botocore: an operation that is not in the table is refused, and so is a member of one that is."""
    served = {operation.name: operation for operation in OPERATIONS}
    seen = set()
    model = client_model()
    for name in model.operation_names:
        operation = model.operation_model(name)
        path, _, query = operation.http["requestUri"].partition("?")
        if path == "/WriteGetObjectResponse" or name == "ListDirectoryBuckets":
            # Calls of other endpoints of S3.
            continue
        method, resource = operation.http["method"], ["service", "bucket", "object"][path.count("{")]
        shapes = operation.input_shape.members.values() if operation.input_shape else ()
        places = {shape.serialization.get("name"): shape.serialization.get("location") for shape in shapes}
        # These choose the operation.
        options = [*filter(None, (part.partition("=")[0] for part in query.split("&"))), *({"uploadId"} & {*places})]
        headers = [header for header in ("x-amz-copy-source", "x-amz-rename-source") if header in places]
        if name not in served:
            with pytest.raises(S3Error):
                find_operation(method, resource, options, headers)
            continue
        assert find_operation(method, resource, options, headers) == name
        for member, place in places.items():
            if place == "querystring":
                more, counts = ([*options, member], headers), served[name].takes(member)
            elif place in ("header", "headers") and member.lower().startswith(("x-amz-", "if-")):
                more = (options, [*headers, member.lower()])
                counts = served[name].takes(member.lower()) or member.lower() in _GROUPS["EVERY"].split()
            else:
                continue
            seen.add(member.lower())
            if counts:
                assert find_operation(method, resource, *more) == name
            else:
                with pytest.raises(S3Error, match=f"(?i)no {member} "):
                    find_operation(method, resource, *more)
    # Nothing in the table is misspelled.
    table = {member.lower() for operation in OPERATIONS for member in operation.members if not member.endswith("-")}
    assert table - seen == {"if-range"}


def test_what_a_body_asks_for_is_done_or_refused(client: Any) -> None:
    region: Any = {"LocationConstraint": "eu-west-1", "Tags": [{"Key": "a", "Value": "b"}]}
    with pytest.raises(ClientError) as tagged:
        client.create_bucket(Bucket="tagged", CreateBucketConfiguration=region)
    assert code(tagged) == "NotImplemented"
    client.put_object(Bucket="mine", Key="kept")
    objects = {"Objects": [{"Key": "kept", "VersionId": "1"}]}
    assert refused(client.delete_objects, Delete=objects) == ("NotImplemented", 501)
    client.head_object(Bucket="mine", Key="kept")
    for name in ("tagged-1", "tagged-2", "tagged-3"):
        client.create_bucket(Bucket=name)
    pages = client.get_paginator("list_buckets").paginate(Prefix="tagged-", PaginationConfig={"PageSize": 2})
    assert [[bucket["Name"] for bucket in page["Buckets"]] for page in pages] == [
        ["tagged-1", "tagged-2"],
        ["tagged-3"],
    ]


@pytest.mark.parametrize("name", [b".git/config", b"caf\xe9.csv", b"a/.hidden", b"a/b/file"])
def test_a_bucket_with_files_of_any_name_stays(tmp_path: Path, name: bytes) -> None:
    store = Store(tmp_path)
    store.create_bucket("mine")
    file = tmp_path / "mine" / os.fsdecode(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("precious")
    with pytest.raises(S3Error, match="not empty"):
        store.delete_bucket("mine")
    assert file.read_text() == "precious"
    file.unlink()
    # A link is no object, and its target stays.
    (tmp_path / "mine" / "link").symlink_to(tmp_path)
    store.delete_bucket("mine")
    assert list(tmp_path.iterdir()) == []


def test_a_listing_does_not_follow_a_folder_that_becomes_a_link(tmp_path: Path) -> None:
    """A job may write into the bucket, and so replace a folder between its listing and that of what is in it."""
    store = Store(tmp_path / "buckets")
    store.create_bucket("mine")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "name").touch()
    for key in ("a/1", "b/2"):
        file = tmp_path / "buckets/mine" / key
        file.parent.mkdir()
        file.touch()
    keys = store.keys("mine")
    assert next(keys) == "a/1"
    (tmp_path / "buckets/mine/b").rename(tmp_path / "buckets/mine/c")
    (tmp_path / "buckets/mine/b").symlink_to(tmp_path / "secret")
    assert list(keys) == []
