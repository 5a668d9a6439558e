"""Install a user's requirements into an image derived from another one, once per file and image."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from herringbone.engine.client import Engine
from herringbone.engine.docker_settings import docker_folder, proxy_variables
from herringbone.engine.restrictions import restrictions
from herringbone.images.build import Image, described, made_once, root_folder, split_name
from herringbone.images.build_errors import explain
from herringbone.images.context import Context, wheel_files, wheels_in
from herringbone.images.labels import REPOSITORY, Label, repository
from herringbone.images.pip_settings import index_variables, setting_lines
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import ImageError, InputError

_FOLDER = "/tmp/herringbone-requirements"  # noqa: S108 - a folder of the installing container
_SETTINGS = f"{_FOLDER[1:]}/settings"
_HASH_CHARS = 12
_PIECE_BYTES = 1 << 20
_INCLUDE = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[ =]\s*(\S+)")
# A requirement that is a path, without its extras and its marker, or a folder of wheels.
_LOCAL = re.compile(
    r"\s*(?P<option>-e|--editable|-f|--find-links)?[ =]*(?:\S+ *@ *)?(?:file:(?://)?)?(?P<path>[^\s@;#\[-][^\s;#\[]*)"
)
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")
_BUILT = frozenset({"__pycache__", ".git", "build", "dist"})
# Installs with the image's `python`. Removing the folder in the same layer keeps its content out of the image.
_INSTALL = f"""
set -eu
cd {_FOLDER}
while IFS= read -r variable; do export "$variable"; done < settings
if [ -s ca.pem ]; then export PIP_CERT=$PWD/ca.pem; fi
python=$(command -v python || command -v python3) || {{ echo "herringbone: the image has no python"; exit 64; }}
$python -m pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --progress-bar off \\
    --no-input --find-links wheels -r "$1"
cd /
rm -rf {_FOLDER}
"""


def bake(
    engine: Engine,
    image: str,
    requirements: Path,
    say: Callable[[str], None],
    *,
    wheelhouse: Path | None = None,
    ca_bundle: Path | None = None,
) -> Image:
    """Return an image with the requirements installed; installs the same file on the same image once.

    >>> bake(engine, "herringbone/pytorch:2.13.0-cpu-7c5b", Path("requirements.txt"), print).name  # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-7c5b-with-0a1b2c3d4e5f'

    Files included with -r or -c are taken, too. Raises `InputError` for a missing file, `ImageError` for an image that
    the engine does not have and for packages that pip cannot install.
    """
    context = gather(requirements, wheelhouse=wheelhouse, ca_bundle=ca_bundle)
    base = described(engine, image)
    digest = hashlib.sha256(f"{base['Id']} {requirements.name} {context.digest}".encode()).hexdigest()[:_HASH_CHARS]
    name = baked_name(image, base["Config"].get("Labels") or {}, digest)
    return made_once(engine, name, lambda: _install(engine, base, name, context, requirements.name, digest, say))


def gather(requirements: Path, *, wheelhouse: Path | None = None, ca_bundle: Path | None = None) -> Context:
    """Return the files from which an image installs requirements. Raises `InputError` for missing files."""
    return Context({f"{_FOLDER[1:]}/{name}": content for name, content in _files(requirements, wheelhouse, ca_bundle)})


def baked_name(image: str, labels: Mapping[str, str], digest: str) -> str:
    """Return the name of an image with requirements. Pure.

    >>> baked_name("herringbone/pytorch:2.13.0-cpu-7c", {"dev.herringbone.framework": "pytorch"}, "0a")
    'herringbone/pytorch:2.13.0-cpu-7c-with-0a'
    >>> baked_name("registry:5000/mine", {}, "0a")
    'herringbone/requirements:0a'
    """
    name, tag = split_name(image)
    if labels.get(Label.FRAMEWORK) and name == repository(labels[Label.FRAMEWORK]) and tag is not None:
        return f"{name}:{tag.partition('-with-')[0]}-with-{digest}"
    return f"{REPOSITORY}/requirements:{digest}"


def _install(
    engine: Engine,
    base: Mapping[str, Any],
    name: str,
    context: Context,
    requirements: str,
    digest: str,
    say: Callable[[str], None],
) -> None:
    """Run pip as root in a container of the image, and commit the container as the new image."""
    shell, script = ["/bin/sh"], [_INSTALL, "install", requirements]
    has_entrypoint = bool(base["Config"].get("Entrypoint"))
    description = {
        "Image": base["Id"],
        # An entrypoint set here would stay in an image that has none of its own.
        "Entrypoint": shell if has_entrypoint else None,
        "Cmd": ["-c", *script] if has_entrypoint else [*shell, "-c", *script],
        # pip writes into the image's own Python, whichever user its jobs run as.
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": {Label.REQUIREMENTS: digest},
        # The code of packages that are built from source runs here.
        "HostConfig": restrictions("0:0"),
    }
    settings = {**proxy_variables(docker_folder(os.environ, home_folder())), **index_variables(os.environ)}
    container = engine.post("/containers/create", description)["Id"]
    try:
        with tempfile.TemporaryFile() as archive:
            # A file and not the container's environment, which the commit below would make part of the image.
            Context({**context.files, _SETTINGS: setting_lines(settings)}).write(archive)
            archive.seek(0)
            engine.upload(container, "/", partial(_feed_file, archive))
        engine.post(f"/containers/{container}/start")
        lines = []
        for line in _lines(engine.logs(container, follow=True)):
            lines.append(line)
            say(line)
        # The log ends with the container, so this answers at once.
        code = engine.post(f"/containers/{container}/wait")["StatusCode"]
        if code != 0:
            raise ImageError(explain(lines, f"pip ended with {code}", image_folder=root_folder(engine)))
        repository_, tag = split_name(name)
        # The rest of the container's configuration comes from the image.
        changes = "\n".join(_restored(base["Config"]))
        engine.post("/commit", container=container, repo=repository_, tag=tag, changes=changes)
    finally:
        # `force` also ends a pip that still runs, for example after Ctrl-C; `v` removes anonymous volumes.
        engine.delete(f"/containers/{container}", force=True, v=True)


def _feed_file(file: IO[bytes], feed: Callable[[bytes], None]) -> None:
    while piece := file.read(_PIECE_BYTES):
        feed(piece)


def _restored(config: Mapping[str, Any]) -> list[str]:
    """Return the Dockerfile lines that restore the image's own command, user and folder. Pure.

    >>> _restored({"Cmd": ["train"], "Entrypoint": None, "User": "", "WorkingDir": "/opt/ml/code"})
    ['CMD ["train"]', 'USER root', 'WORKDIR /opt/ml/code']
    """
    entrypoint = config.get("Entrypoint")
    # Jobs run the command `train` of an image without a command of its own.
    command = config.get("Cmd") or ([] if entrypoint else ["train"])
    return [
        *([f"ENTRYPOINT {json.dumps(entrypoint)}"] if entrypoint else []),
        f"CMD {json.dumps(command)}",
        f"USER {config.get('User') or 'root'}",
        f"WORKDIR {config.get('WorkingDir') or '/'}",
    ]


def _files(requirements: Path, wheelhouse: Path | None, ca_bundle: Path | None) -> Iterator[tuple[str, bytes | Path]]:
    for name, path in _included(requirements, requirements.absolute().parent, set()):
        yield name, path.read_bytes()
    if ca_bundle is not None:
        yield "ca.pem", _present(ca_bundle)
    yield from wheel_files(() if wheelhouse is None else wheels_in(wheelhouse).values())


def _included(path: Path, root: Path, visited_paths: set[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (path below `root`, path) of a requirements file and of the files that it includes."""
    path = path.absolute()
    if path in visited_paths:
        return
    visited_paths.add(path)
    data = _present(path).read_bytes()
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    content = data.decode("utf-16" if is_utf_16 else "utf-8-sig", errors="replace")
    if "\0" in content:
        raise InputError(f"{path} has zero bytes, as UTF-16 without a byte order mark has: save it in UTF-8")
    # Other folders are not sent, so pip would not find the file.
    try:
        yield path.resolve().relative_to(root.resolve()).as_posix(), path
    except ValueError:
        raise InputError(f"{path}: requirements to bake must include files of their own folder {root} only") from None
    for line in content.splitlines():
        # pip itself downloads a file that is included by its address.
        if (match := _INCLUDE.match(line)) and "://" not in match[1]:
            yield from _included(path.parent / match[1], root, visited_paths)
        # pip takes other relative paths from the folder in which it runs.
        elif (match := _LOCAL.match(line)) and _is_path(match["path"]) and (root / match["path"]).exists():
            if match["option"] in ("-e", "--editable"):
                raise InputError(f"{line.strip()}: an image keeps no folder that you could edit; leave out -e")
            yield from _local_files(line, root, match["path"])


def _is_path(word: str) -> bool:
    """Report whether pip takes a word for a path, and not for a name. Pure."""
    return "/" in word or word.startswith(".") or word.endswith(_ARCHIVES)


def _local_files(line: str, root: Path, path: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a wheel, an archive or a library of the user's."""
    target = root / path
    for file in sorted(target.rglob("*")) if target.is_dir() else [target]:
        place = Path(os.path.normpath(file))
        # By the target of a link, too: the image may be pushed.
        is_here = place.is_relative_to(root) and not path.startswith("/")
        if not (is_here and file.resolve().is_relative_to(root.resolve())):
            raise InputError(
                f"{line.strip()}: requirements to bake must be in {root}, by a relative path; copy {file} there"
            )
        if file.is_file() and not _BUILT.intersection(place.relative_to(root).parts):
            yield place.relative_to(root).as_posix(), file


def _present(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    return path


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Join the engine's pieces of output and yield whole lines."""
    unfinished = b""
    for piece in pieces:
        # A piece may end within a line, and within a character, so decode whole lines only.
        *lines, unfinished = (unfinished + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if unfinished:
        yield unfinished.decode(errors="replace")
