"""What a machine is told of the one host that it plays: a plan, and what of it lies where over there."""

from __future__ import annotations

from typing import Any

import msgspec

from herringbone.code.source import SourceCode
from herringbone.estimators.inputs import Channel
from herringbone.planning.plan import JobPlan, parse_plan


class Delivery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One channel's data on a machine: a digest that was sent there, or a `path` that the machine sees anyway.

    `file` is the name of a lone file.
    """

    digest: str | None = None
    path: str | None = None
    file: str | None = None


class StartOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host of a job, to be started.

    `plan` is the whole job's, unmasked. `control` is where its supervisors meet and `key` what they know, None for a
    lone host. `code` is the digest of its packed code, `data` its channels' by their names. `interface` leads to the
    other hosts. `machines` says which machine plays which host, for who attaches later. `settings` are variables for
    the supervisor. `checkpoints` is the digest of what an earlier attempt left, None for none. `image` is the id of a
    container's, None for a process. It travels through a pipe: nothing of it is on a disk or a command line there.
    """

    plan: dict[str, Any]
    host: str
    control: str | None
    key: str | None
    code: str
    data: dict[str, Delivery]
    interface: str
    machines: dict[str, Any]
    settings: dict[str, str]
    checkpoints: str | None = None
    image: str | None = None


def plan_to_send(plan: JobPlan) -> dict[str, Any]:
    """Return a plan as plain values, secrets and all; what only this Python can use is left out."""
    options = msgspec.structs.replace(plan.options, sagemaker_session=None)
    plain = msgspec.to_builtins(msgspec.structs.replace(plan, options=options, request=None))
    assert isinstance(plain, dict)
    return plain


def localised(order: StartOrder, *, code: str, data_folder: str) -> JobPlan:
    """Return the plan with this machine's paths: `code` is the packed code, data lies below `data_folder`. Pure."""
    plan = parse_plan(order.plan)
    assert plan.source is not None
    return msgspec.structs.replace(
        plan,
        options=msgspec.structs.replace(plan.options, output_path=None),
        source=SourceCode(entry_point=plan.source.entry_point, archive=code),
        channels=tuple(_moved(channel, order.data[channel.name], data_folder) for channel in plan.channels),
        folder="/",
    )


def _moved(channel: Channel, delivery: Delivery, data_folder: str) -> Channel:
    return msgspec.structs.replace(channel, path=place_of_data(delivery, data_folder))


def place_of_data(delivery: Delivery, data_folder: str) -> str:
    """Return where a machine sees a channel's data.

    >>> place_of_data(Delivery(digest="5f", file="digits.npz"), "/srv/data")
    '/srv/data/5f/digits.npz'
    """
    if delivery.path is not None:
        return delivery.path
    place = f"{data_folder}/{delivery.digest}"
    return place if delivery.file is None else f"{place}/{delivery.file}"
