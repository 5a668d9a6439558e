"""Copy the code of a tuning job once, so that its last trial runs the code that the first one ran."""

from __future__ import annotations

import shutil
from pathlib import Path

from herringbone.code.files import code_files, located
from herringbone.code.secret_files import looks_secret
from herringbone.plan.source import SourceCode
from herringbone_contract import safe_tree

_IGNORE_FILES = (".gitignore", ".dockerignore", ".herringboneignore")


def copy_code(source: SourceCode, into: Path, *, stays_at: Path, exclude: Path) -> SourceCode:
    """Copy a job's code into a new folder, and return the copy as the code of a job.

    >>> copy_code(plan.source, folder / "code", stays_at=folder / "code", exclude=home.path).folder     # doctest: +SKIP
    '/home/me/.herringbone/tunings/digits/code'

    `stays_at` is the path that the folder will have, `exclude` a folder that holds no code: the jobs' own. An archive
    is copied as it is, and one in a bucket stays there. Raises `InputError` as the submission of a job does.
    """
    if source.remote:
        # Each trial fetches it from its bucket.
        return source
    into.mkdir(parents=True)
    if source.archive is not None:
        name = Path(source.archive).name
        shutil.copy2(source.archive, into / name)
        return SourceCode(entry_point=source.entry_point, archive=str(stays_at / name))
    secrets = []
    for name, path in code_files(source, exclude=exclude).items():
        # Ignore rules were applied now. A second time, they would leave out files that the user named one by one.
        if path.name in _IGNORE_FILES:
            continue
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        safe_tree.copy(*located(source, path), target)
        # `code_files` has refused every file that looks like a secret, unless the user named it.
        if looks_secret(target):
            secrets.append(name)
    if any((above / ".git").exists() for above in stays_at.parents):
        # Rules of a repository around the home do not apply to a folder that looks like one; `.git` never travels.
        (into / ".git").touch()
    return SourceCode(entry_point=source.entry_point, folder=str(stays_at), whole_folder=True, secrets=tuple(secrets))
