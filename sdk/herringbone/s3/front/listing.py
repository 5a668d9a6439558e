"""Listings: of buckets, of objects in both versions of the operation, of uploads and of their parts."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from herringbone.s3.front.answers import entry, grouped, key_of, number_of, token_of, xml
from herringbone.s3.front.documents import Member, encoded, time_text
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.store import Store
from herringbone.s3.front.uploads import MAX_PART, Uploads

_MAX_KEYS = 1000


def list_page(store: Store, bucket: str, options: Mapping[str, str]) -> Response:
    """Return the page that the options ask for: at most 1,000 keys and common prefixes. Raises `S3Error`."""
    second = options.get("list-type") == "2"
    prefix, delimiter = options.get("prefix", ""), options.get("delimiter", "")
    encoding = options.get("encoding-type")
    most = min(number_of(options.get("max-keys", str(_MAX_KEYS)), "max-keys"), _MAX_KEYS)
    after = options.get("start-after", "") if second else options.get("marker", "")
    if second and (token := options.get("continuation-token")) is not None:
        after = key_of(token)
    names, truncated = _page(store, bucket, prefix, delimiter, after, most)
    contents: list[Member] = []
    prefixes: list[Member] = []
    for name in names:
        if delimiter and delimiter in name[len(prefix) :]:
            prefixes.append(("CommonPrefixes", [("Prefix", encoded(name, encoding))]))
            continue
        try:
            contents.append(("Contents", entry(store.facts(bucket, name), encoding)))
        except S3Error:
            # Removed since it was listed.
            continue
    members: list[Member] = [
        ("Name", bucket),
        ("Prefix", encoded(prefix, encoding)),
        ("MaxKeys", most),
        ("IsTruncated", truncated),
    ]
    members += [("Delimiter", encoded(delimiter, encoding))] if delimiter else []
    members += [("EncodingType", encoding)] if encoding else []
    if second:
        members.append(("KeyCount", len(contents) + len(prefixes)))
        members += [("NextContinuationToken", token_of(names[-1]))] if truncated else []
    else:
        members.append(("Marker", encoded(after, encoding)))
        members += [("NextMarker", encoded(names[-1], encoding))] if truncated else []
    return xml("ListBucketResult", [*members, *contents, *prefixes])


def _page(store: Store, bucket: str, prefix: str, delimiter: str, after: str, most: int) -> tuple[list[str], bool]:
    """Return the entries of a page, and whether there are more."""
    names: list[str] = []
    for name in grouped(store.keys(bucket, prefix, after, by_folder=delimiter == "/"), prefix, delimiter, after):
        if len(names) == most:
            return names, most > 0
        names.append(name)
    return names, False


def list_buckets(store: Store, identity: str, options: Mapping[str, str]) -> Response:
    """Return the buckets that the options ask for. Raises `S3Error`."""
    prefix, most = options.get("prefix", ""), number_of(options.get("max-buckets", "10000"), "max-buckets")
    after = key_of(options.get("continuation-token", ""))
    buckets = [bucket for bucket in store.buckets() if bucket[0].startswith(prefix) and bucket[0] > after]
    shown: list[Member] = [
        ("Bucket", [("Name", name), ("CreationDate", time_text(made))]) for name, made in buckets[:most]
    ]
    members: list[Member] = [("Owner", [("ID", identity), ("DisplayName", identity)]), ("Buckets", shown)]
    members += [("ContinuationToken", token_of(buckets[most - 1][0]))] if 0 < most < len(buckets) else []
    return xml("ListAllMyBucketsResult", [*members, *([("Prefix", prefix)] if prefix else [])])


def list_parts(uploads: Uploads, bucket: str, key: str, options: Mapping[str, str]) -> Response:
    """Return the parts of an upload that have arrived and that the options ask for. Raises `S3Error`."""
    upload, after = options["uploadId"], number_of(options.get("part-number-marker", "0"), "part-number-marker")
    most = number_of(options.get("max-parts", str(MAX_PART)), "max-parts")
    parts = [part for part in uploads.parts(bucket, key, upload) if part.number > after]
    items: list[Member] = [
        ("Part", [("PartNumber", part.number), ("ETag", f'"{part.etag}"'), ("Size", part.size)])
        for part in parts[:most]
    ]
    truncated = 0 < most < len(parts)
    named: list[Member] = [("Bucket", bucket), ("Key", key), ("UploadId", upload), ("IsTruncated", truncated)]
    named += [("NextPartNumberMarker", parts[most - 1].number)] if truncated else []
    return xml("ListPartsResult", [*named, *items])


def list_uploads(uploads: Uploads, bucket: str, options: Mapping[str, str]) -> Response:
    """Return the uploads of a bucket that are not complete."""
    encoding = options.get("encoding-type")
    items: list[Member] = [
        ("Upload", [("Key", encoded(key, encoding)), ("UploadId", upload)])
        for key, upload in uploads.all(bucket, options.get("prefix", ""))
    ]
    items += [("EncodingType", encoding)] if encoding else []
    return xml("ListMultipartUploadsResult", [("Bucket", bucket), ("IsTruncated", False), *items])
