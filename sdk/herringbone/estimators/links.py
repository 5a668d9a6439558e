"""Find links on the way to an address, in folders to which scripts of several users may write."""

from __future__ import annotations

from pathlib import Path

from herringbone.estimators.inputs import local_path


def link_on_the_way(address: str, folder: str) -> Path | None:
    """Return the first link on the way from an entry of `folder` to an address below it; None without one.

    >>> link_on_the_way("s3://mine/data", "/srv/buckets") is None
    True

    An entry of `folder` itself may be a link: only its administrator can make that one.
    """
    path = local_path(address, base=Path("/"))
    if path is None or not path.is_relative_to(folder):
        return None
    entry, *parts = path.relative_to(folder).parts or ("",)
    path = Path(folder, entry)
    for part in parts:
        path /= part
        if path.is_symlink():
            return path
    return None


def results_of_job(output: str, job: str) -> list[str]:
    """Return the addresses of a job's results: others may have made folders, or links, of these names already.

    >>> results_of_job("file:///srv/out", "digits-1")[0]
    'file:///srv/out/digits-1/output/model'
    """
    return [f"{output.rstrip('/')}/{job}/output/{kind}" for kind in ("model", "model.tar.gz", "output.tar.gz")]
