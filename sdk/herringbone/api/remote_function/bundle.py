"""Write what a call of a remote function needs into a folder: the job's script, the pickled call, modules.

herringbone_remote.py   the job's script
call.json               Python's version, the function's name, folders to import from, sources for tracebacks
call.pkl                function and arguments, by cloudpickle
requirements.txt        packages to install, where `dependencies` names such a file
"""

from __future__ import annotations

import json
import linecache
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from herringbone.api.remote_function import script
from herringbone.api.remote_function.modules import installed_places, loaded_modules, local_modules
from herringbone.system.user_paths import current_folder
from herringbone_contract.errors import InputError, OptionError, UnsupportedError

# Above this size, messages name the parts of a call. Code travels to every host and into every job's folder.
LARGE_BYTES = 10 << 20
_SHOWN_PARTS = 3


def find_cloudpickle() -> Any:
    """Return the module cloudpickle. Raises `UnsupportedError` where it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        raise UnsupportedError("remote: needs cloudpickle, which is not installed; pip install cloudpickle") from None
    return cloudpickle


def write_bundle(
    folder: Path,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    include_local_workdir: bool,
    requirements: Path | None,
) -> list[Path]:
    """Write the files of a call into a new folder, and return the files and folders that travel next to them.

    Raises `InputError` for a call that cannot be pickled, with the name of the part.
    """
    pickle = find_cloudpickle()
    workdir = current_folder()
    shutil.copyfile(script.__file__, folder / script.SCRIPT)
    if requirements is not None:
        shutil.copyfile(requirements, folder / "requirements.txt")
    # Its own folder travels: the job's Python then reads with the version that wrote.
    extra = [Path(pickle.__file__).parent]
    paths = []
    if include_local_workdir:
        extra.append(workdir)
        paths.append(workdir.name)
    else:
        roots = {workdir, *_script_folder()}
        loaded, installed = loaded_modules(), installed_places()
        extra += sorted({path for root in roots for path in local_modules(loaded, folder=root, installed=installed)})
    (folder / script.CALL).write_bytes(_pickled(pickle, function, arguments, keywords))
    header = {
        "python": [*sys.version_info[:2]],
        "name": name_of(function),
        "paths": paths,
        "sources": _sources(function),
    }
    (folder / script.HEADER).write_text(json.dumps(header), "utf-8")
    return extra


def parts_of(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a call by their names: arguments, closed-over variables, and the globals that are used.

    >>> parts_of(lambda x: x, (1,), {"y": 2})
    {'argument 0': 1, 'argument y': 2}
    """
    import inspect

    parts = {f"argument {name}": value for name, value in [*enumerate(arguments), *keywords.items()]}
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return parts  # a callable object, or a closure whose variable has no value yet
    return parts | {f"variable {name}": value for name, value in {**variables.nonlocals, **variables.globals}.items()}


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object.

    >>> import functools
    >>> name_of(len), name_of(functools.partial(len))
    ('len', 'partial')
    """
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name


def size_note(total: int, sizes: Mapping[str, int]) -> str:
    """Return a message about a large call, with its largest parts.

    >>> size_note(230 << 20, {"argument 0": 1, "variable table": 229 << 20})
    'the call has 230 MB, which every host gets: variable table has 229 MB; put data into a channel (inputs=...)'
    """
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_SHOWN_PARTS]
    named = ", ".join(f"{name} has {size >> 20} MB" for name, size in largest if size >> 20)
    parts = f": {named}" if named else ""
    return f"the call has {total >> 20} MB, which every host gets{parts}; put data into a channel (inputs=...)"


def requirements_of(dependencies: object) -> Path | None:
    """Return the file of requirements that `dependencies` names, as in AWS's decorator; None for a list of paths."""
    if not isinstance(dependencies, (str, Path)):
        return None
    path = Path(dependencies)
    if path.suffix != ".txt":
        raise OptionError(
            f"dependencies: {str(dependencies)!r} is no requirements.txt; give the path of one, or a list of files and"
            " folders to take along (conda's files and auto_capture are not served)"
        )
    if not path.is_file():
        raise InputError(f"dependencies: {path}: no such file")
    return path


def _pickled(
    pickle: Any, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> bytes:
    try:
        content: bytes = pickle.dumps((function, arguments, dict(keywords)))
    except Exception as error:
        part = next(
            (name for name, value in parts_of(function, arguments, keywords).items() if not _fits(pickle, value)), ""
        )
        where = f"{part} of " if part else ""
        raise InputError(
            f"remote: {where}{name_of(function)} cannot travel: {error}; create such an object inside the function"
        ) from error
    if len(content) > LARGE_BYTES:
        parts = parts_of(function, arguments, keywords)
        sizes = {name: len(pickle.dumps(value)) for name, value in parts.items()}
        print(f"remote: {size_note(len(content), sizes)}", file=sys.stderr)
    return content


def _fits(pickle: Any, value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - any error in the user's class
        return False
    return True


def _sources(function: Callable[..., Any]) -> dict[str, str]:
    """Return the text of the function's file by its name: a notebook's cell and the main script are no local module."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    return {code.co_filename: "".join(linecache.getlines(code.co_filename))}


def _script_folder() -> set[Path]:
    # Where Python looks for the modules of a script that was started from another folder.
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return set() if main is None else {Path(main).resolve().parent}
