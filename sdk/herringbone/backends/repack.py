"""Pack the results of a job that is over and has no archive, from the hosts' own folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.aws.location import is_s3
from herringbone.backends.review.checks import output_folder
from herringbone.controller.artifacts import has_model, pack_model, pack_output
from herringbone.plan.plan import parse_plan
from herringbone_contract.errors import InputError
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.records.home import JobFolder
    from herringbone.records.index import JobRecord


def repack(record: JobRecord, folder: JobFolder, say: Callable[[str], None]) -> Path:
    """Pack the model and the output of a job into the place where its controller would have packed them.

    >>> repack(index.get("digits-1"), home.job("digits-1"), print)       # doctest: +SKIP
    PosixPath('/home/me/.herringbone/jobs/digits-1/output/model.tar.gz')

    Raises `InputError` for a job that runs, has its archive, or left no model; `OSError` for a full disk.
    """
    if not record.done:
        raise InputError(f"job {record.name} is {record.status}: it packs its model itself at its end")
    plan = parse_plan(record.plan_dict)
    in_s3 = is_s3(plan.options.output_path)
    if record.model is not None and (is_s3(record.model) or (Path(record.model).exists() and not in_s3)):
        raise InputError(f"job {record.name} has its model already: {record.model}")
    if in_s3 and record.model is not None and Path(record.model).exists():
        # It was packed, and could not be sent.
        return Path(record.model)
    bases = [(host.name, folder.host(host.name)) for host in plan.hosts]
    if not has_model(bases):
        looked = ", ".join(str(Paths(base).model) for _, base in bases)
        raise InputError(f"job {record.name} left no model: there are no files in {looked}")
    output, compress = output_folder(plan, folder), not plan.options.disable_output_compression
    pack_output(bases, output, compress=compress, say=say)
    model = pack_model(bases, output, compress=compress, say=say)
    assert model is not None
    return model
