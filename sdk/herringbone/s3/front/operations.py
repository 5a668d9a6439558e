"""The table of S3's operations that are served, each with the members that count; all else is refused by name. Pure.

Members of a request are options of its query, and headers whose names begin with `x-amz-` or `if-`. A member that an
operation does not list answers 501: a condition or a lock that is ignored would be a promise that nobody keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from herringbone.s3.front.refusals import S3Error

# Name, method, resource, the option of the query that chooses it, and members; words in capitals are groups of them.
# A member that ends with a dash stands for all that begin with it. The page of the service says which of them change
# nothing, and why.
_TABLE = """
ListBuckets             GET    service -          prefix max-buckets continuation-token
CreateBucket            PUT    bucket  -          x-amz-acl SUMS
HeadBucket              HEAD   bucket  -
DeleteBucket            DELETE bucket  -
ListObjects             GET    bucket  -          PAGE marker
ListObjectsV2           GET    bucket  list-type  PAGE continuation-token start-after fetch-owner
GetBucketLocation       GET    bucket  location
GetBucketVersioning     GET    bucket  versioning
ListMultipartUploads    GET    bucket  uploads    prefix encoding-type
DeleteObjects           POST   bucket  delete     SUMS
GetObject               GET    object  -          READ
HeadObject              HEAD   object  -          READ
PutObject               PUT    object  -          WRITE KEPT SUMS
CopyObject              PUT    object  -          WRITE KEPT SOURCE x-amz-metadata-directive x-amz-checksum-algorithm
DeleteObject            DELETE object  -          if-match
CreateMultipartUpload   POST   object  uploads    KEPT x-amz-checksum-algorithm x-amz-checksum-type
UploadPart              PUT    object  uploadId   partNumber SUMS
UploadPartCopy          PUT    object  uploadId   partNumber SOURCE x-amz-copy-source-range
CompleteMultipartUpload POST   object  uploadId   WRITE x-amz-mp-object-size x-amz-checksum-type
AbortMultipartUpload    DELETE object  uploadId
ListParts               GET    object  uploadId   max-parts part-number-marker
"""
_GROUPS = {
    "WRITE": "if-match if-none-match",
    "READ": "if-match if-none-match if-modified-since if-unmodified-since if-range x-amz-checksum-mode response-",
    "SOURCE": """x-amz-copy-source x-amz-copy-source-if-match x-amz-copy-source-if-none-match
        x-amz-copy-source-if-modified-since x-amz-copy-source-if-unmodified-since x-amz-source-expected-bucket-owner""",
    "SUMS": """x-amz-checksum-crc32 x-amz-checksum-crc32c x-amz-checksum-crc64nvme x-amz-checksum-sha1
        x-amz-checksum-sha256""",
    "KEPT": "x-amz-meta- x-amz-acl x-amz-storage-class x-amz-server-side-encryption",
    "PAGE": "prefix delimiter encoding-type max-keys",
    # Of every request: its signature, the form of its body, and the owner of its bucket.
    "EVERY": """x-id x-amz-user-agent x-amz-te x-amz-content-sha256 x-amz-decoded-content-length x-amz-trailer
        x-amz-sdk-checksum-algorithm x-amz-request-payer x-amz-expected-bucket-owner x-amz-algorithm x-amz-credential
        x-amz-date x-amz-expires x-amz-signedheaders x-amz-signature x-amz-security-token""",
}


def method_of(name: str) -> str:
    """Return the name of the method that answers an operation.

    >>> method_of("GetObject"), method_of("ListObjectsV2")
    ('get_object', 'list_objects_v2')
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Operation(NamedTuple):
    """One operation that is served; `option` is "" where none chooses it."""

    name: str
    method: str
    resource: str
    option: str
    members: tuple[str, ...]

    def takes(self, member: str) -> bool:
        """Report whether a member is taken."""
        return member in (*self.members, self.option) or any(
            known.endswith("-") and member.startswith(known) for known in self.members
        )


def _parsed(line: str) -> Operation:
    name, method, resource, option, *words = line.split()
    members = [member for word in words for member in _GROUPS.get(word, word).split()]
    return Operation(name, method, resource, option.removeprefix("-"), tuple(members))


OPERATIONS = tuple(_parsed(line) for line in _TABLE.strip().splitlines())
_CHOOSING = {operation.option for operation in OPERATIONS} - {""}


def find_operation(method: str, resource: str, options: Iterable[str], headers: Iterable[str]) -> str:
    """Return the name of the operation that a request asks for. Raises `S3Error` for a member that does not count.

    >>> find_operation("GET", "object", ["uploadId", "max-parts"], ["host"])
    'ListParts'
    """
    options, members = list(options), [name for name in headers if name.startswith(("x-amz-", "if-"))]
    chosen = (method, resource, next((name for name in options if name in _CHOOSING), ""))
    copies = method == "PUT" and "x-amz-copy-source" in members
    known = [each for each in OPERATIONS if each[1:4] == chosen and ("x-amz-copy-source" in each.members) == copies]
    operation = known[0] if known else Operation("", method, resource, "", ())
    # Presigned addresses of some SDKs have a checksum in the query: that of an empty body, which is not sent.
    free = [
        member for name in ("EVERY", "SUMS")[: 1 + ("X-Amz-Signature" in options)] for member in _GROUPS[name].split()
    ]
    for name in (*options, *members):
        if not operation.takes(name) and name.lower() not in free:
            raise S3Error("NotImplemented", f"This server has no {name} for {operation.name or method}.", 501)
    if not known:
        raise S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.", 405)
    return operation.name
