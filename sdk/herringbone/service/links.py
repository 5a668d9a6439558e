"""Refuse addresses that lead through a link in a bucket.

A container may write into its folder of checkpoints, which is a folder of a bucket. If its script makes a link to a
folder of this machine there, and another job has the address of that link as a channel, the engine follows the link on
this machine when it mounts the channel. So whoever has a key could read and write the files of the service.
"""

from __future__ import annotations

from herringbone.estimators.links import link_on_the_way, results_of_job
from herringbone.service.errors import invalid
from herringbone.service.settings import Settings
from herringbone.service.translate import Translated


def check_links(translated: Translated, job: str, settings: Settings) -> None:
    """Raise `ApiError` (ValidationException) for an address of a job that leads through a link.

    >>> check_links(translate(request, settings), "digits-1", settings)              # doctest: +SKIP

    A bucket itself may be a link: no job can write into the folder of buckets.
    """
    if settings.buckets is None:
        return
    addresses = translated.addresses
    if isinstance(output := translated.arguments.get("output_path"), str):
        # The results go there, into folders that another job may have made already.
        addresses += results_of_job(output, job)
    for address in addresses:
        if (link := link_on_the_way(address, settings.buckets)) is not None:
            shown = link.relative_to(settings.buckets)
            raise invalid(f"s3://{shown} is a link in the folder of the bucket; give the address that it leads to")
