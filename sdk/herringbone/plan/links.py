"""Find links on the way to an address, in folders to which scripts of several users may write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.plan.inputs import local_path

if TYPE_CHECKING:
    from herringbone.plan.options.typed import Options
    from herringbone.plan.source import SourceCode


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


def result_folders(options: Options, source: SourceCode, *, base: Path) -> tuple[str, ...]:
    """Return the folders to which a job with these options writes, as far as they lie in its code. Pure.

    >>> source = find_source("train.py", "src", (), base=Path("/home/me"))                   # doctest: +SKIP
    >>> result_folders(parse_options({"output_path": "src/out"}), source, base=Path("/home/me"))  # doctest: +SKIP
    ('/home/me/src/out',)
    """
    config = options.tensorboard_output_config
    addresses = [options.output_path, options.checkpoint_s3_uri, None if config is None else config.s3_output_path]
    addresses += [text.partition(":")[2] for text in options.track if text.startswith("tensorboard:")]
    paths = [path for address in filter(None, addresses) if (path := local_path(address, base=base)) is not None]
    code = [*([source.folder] if source.folder is not None and source.whole_folder else []), *source.dependencies]
    # `or ()`: Python 3.10 makes another empty tuple here, which msgspec would not take for the default.
    return tuple(sorted({str(path) for path in paths if any(path.is_relative_to(folder) for folder in code)})) or ()
