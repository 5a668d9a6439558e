"""The settings of the service: its account, its regions, and the mapping of AWS's names to own hosts. Pure.

instance_types:
  ml.p4d.24xlarge: {hosts: 1, gpus: 8}          # one such instance at a time, each with 8 GPUs
  ml.m5.*: {hosts: 4, backend: "slurm:cpu"}
images:
  "*/pytorch-training:*": herringbone/pytorch:cpu
roles: ["arn:aws:iam::123456789012:role/training"]
quotas:
  ada: {jobs: 4}
  "*": {jobs: 2}
connections: {strangers: 128, of_caller: 32}
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import msgspec

from herringbone.plan.option_errors import python_words
from herringbone.system.connections import Limits
from herringbone_contract.errors import InputError

DEFAULT_ACCOUNT, DEFAULT_REGION = "000000000000", "us-east-1"
# The kinds of jobs in ARNs.
TRAINING_JOB, TUNING_JOB = "training-job", "hyper-parameter-tuning-job"


class HostType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The hosts behind one `ml.*` type.

    `hosts` are as many as may run at once, over all users; None is no limit. `gpus` is the number of each host.
    `backend` is the `instance_type` of an estimator; None is the service's own.
    """

    hosts: int | None = None
    gpus: int | None = None
    backend: str | None = None


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of jobs that a user may have running at once."""

    jobs: int


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The file of `--mapping`. Keys of `instance_types`, `images` and `quotas` are patterns; the first match counts.

    Without `instance_types`, every `ml.*` type runs. Without `roles`, every role of the account may be passed. Without
    `connections`, their limits are those of `Limits`, or fewer where the process may open few files.
    """

    instance_types: dict[str, HostType] | None = None
    images: dict[str, str] = {}
    roles: tuple[str, ...] | None = None
    quotas: dict[str, Quota] = {}
    connections: Limits | None = None

    def host_type(self, instance_type: str) -> HostType | None:
        """Return the hosts behind a type, None for a type that the service does not have.

        >>> Mapping(instance_types={"ml.m5.*": HostType(hosts=2)}).host_type("ml.m5.large").hosts
        2
        """
        if self.instance_types is None:
            return HostType()
        return next((kind for name, kind in self.instance_types.items() if fnmatchcase(instance_type, name)), None)

    def type_pattern(self, instance_type: str) -> str:
        """Return the key that a type belongs to: types of one key share their hosts."""
        return next((name for name in self.instance_types or () if fnmatchcase(instance_type, name)), instance_type)

    def image(self, uri: str) -> str | None:
        """Return the engine's image for an image of a request; None without one.

        >>> Mapping(images={"*/pytorch-training:*": "mine:1"}).image("763104351884.dkr.ecr.eu/pytorch-training:2.1")
        'mine:1'
        """
        return next((image for name, image in self.images.items() if fnmatchcase(uri, name)), None)

    def quota(self, user: str) -> Quota | None:
        return next((quota for name, quota in self.quotas.items() if fnmatchcase(user, name)), None)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the answers of the service depend on.

    `backend` is the `instance_type` that jobs run on. With `any_region`, callers of all regions have the jobs of the
    first one. `buckets` is the folder whose subfolders are the buckets; None leaves `s3://` addresses to the backend.
    With `new_buckets`, the first object of a bucket makes it.
    `adopter` is the user to whom jobs belong that the service has not created. `calls_per_second` is each key's rate,
    ten times of it at once; `s3_calls_per_second` is the one for objects, of which a training may read thousands.
    """

    backend: str
    account: str = DEFAULT_ACCOUNT
    regions: tuple[str, ...] = (DEFAULT_REGION,)
    mapping: Mapping = Mapping()
    buckets: str | None = None
    any_region: bool = False
    new_buckets: bool = False
    adopter: str | None = None
    calls_per_second: float = 20.0
    s3_calls_per_second: float = 200.0

    def arn(self, region: str, name: str, kind: str = TRAINING_JOB) -> str:
        """Return the ARN of a training job, or of a tuning job.

        >>> Settings(backend="local_process").arn("us-east-1", "digits-1")
        'arn:aws:sagemaker:us-east-1:000000000000:training-job/digits-1'
        """
        return f"arn:aws:sagemaker:{region}:{self.account}:{kind}/{name}"


def parse_mapping(document: Any, origin: str) -> Mapping:
    """Return the mapping of a document; `origin` names the file in messages. Raises `InputError`."""
    try:
        return msgspec.convert(document if document is not None else {}, Mapping)
    except msgspec.ValidationError as error:
        raise InputError(f"{origin}: {python_words(str(error))}") from None


def check_account(account: str, regions: tuple[str, ...]) -> None:
    """Raise `InputError` for an account or a region that no ARN could have."""
    if not (len(account) == 12 and account.isascii() and account.isdigit()):
        raise InputError(f"--account {account!r}: an account id has 12 digits")
    for region in regions:
        if not region.isascii() or not region.replace("-", "").isalnum() or region.count("-") < 2:
            raise InputError(f"--region {region!r}: expected a name such as {DEFAULT_REGION}")
