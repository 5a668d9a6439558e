"""A user's requirements put into an image of their own, once."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from herringbone.engine.docker_py import asking
from herringbone.images.build import Image, inspect, root_folder, split_name
from herringbone.images.build_errors import explain
from herringbone.images.context import Context
from herringbone.images.labels import REPOSITORY, Label, repository
from herringbone_contract.errors import ImageError, InputError

_FOLDER = "/tmp/herringbone-requirements"  # noqa: S108 - a folder of the container that installs them
_HASH_CHARS = 12
_INCLUDE = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[ =]\s*(\S+)")
# pip installs into the Python that `python` is in the image; what was put there for it goes again in the same layer.
_INSTALL = f"""
set -eu
cd {_FOLDER}
if [ -s ca.pem ]; then export PIP_CERT=$PWD/ca.pem; fi
python=$(command -v python || command -v python3) || {{ echo "herringbone: the image has no python"; exit 64; }}
$python -m pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --progress-bar off \\
    --no-input --find-links wheels -r "$1"
cd /
rm -rf {_FOLDER}
"""


def bake(
    engine: Any,
    image: str,
    requirements: Path,
    say: Callable[[str], None],
    *,
    wheelhouse: Path | None = None,
    ca_bundle: Path | None = None,
) -> Image:
    """Return an image with a requirements file installed into it; the same file on the same image is installed once.

    >>> bake(connect(), "herringbone/pytorch:2.13.0-cpu-7c5b", Path("requirements.txt"), print).name  # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-7c5b-with-0a1b2c3d4e5f'

    Files that it includes with -r or -c come along. Raises `InputError` for a file that is missing, `ImageError` for an
    image that is not here and for what pip cannot install.
    """
    context = gather(requirements, wheelhouse=wheelhouse, ca_bundle=ca_bundle)
    base = inspect(engine, image)
    if base is None:
        raise ImageError(f"the image {image} is not on this engine: docker pull {image}")
    digest = hashlib.sha256(f"{base['Id']} {requirements.name} {context.digest}".encode()).hexdigest()[:_HASH_CHARS]
    name = baked_name(image, base["Config"].get("Labels") or {}, digest)
    found = inspect(engine, name)
    if found is not None:
        return Image(name, found["Id"], found["Size"], built=False)
    _install(engine, base, name, context, requirements.name, digest, say)
    built = inspect(engine, name)
    if built is None:
        raise ImageError(f"{name} was made and is gone: something here removes images while others are made")
    return Image(name, built["Id"], built["Size"], built=True)


def gather(requirements: Path, *, wheelhouse: Path | None = None, ca_bundle: Path | None = None) -> Context:
    """Return what an image gets to install requirements from. Raises `InputError` for files that are missing."""
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
    engine: Any,
    base: Mapping[str, Any],
    name: str,
    context: Context,
    requirements: str,
    digest: str,
    say: Callable[[str], None],
) -> None:
    """Run pip in a container of the image, as its root, and make the difference a layer."""
    shell, script = ["/bin/sh"], [_INSTALL, "install", requirements]
    with asking(f"to install requirements into {base['Id']}"):
        container = engine.create_container(
            base["Id"],
            # An entrypoint given here would stay in an image that has none of its own.
            entrypoint=shell if base["Config"].get("Entrypoint") else None,
            command=["-c", *script] if base["Config"].get("Entrypoint") else [*shell, "-c", *script],
            user="0:0",
            working_dir="/",
            labels={Label.REQUIREMENTS: digest},
        )["Id"]
        try:
            with tempfile.TemporaryFile() as archive:
                context.write(archive)
                archive.seek(0)
                engine.put_archive(container, "/", archive)
            engine.start(container)
            lines = []
            for line in _lines(engine.logs(container, stream=True, follow=True)):
                lines.append(line)
                say(line)
            code = engine.wait(container)["StatusCode"]
            if code != 0:
                raise ImageError(explain(lines, f"pip ended with {code}", place=root_folder(engine)))
            repository_, tag = split_name(name)
            # All else of the container's configuration is the image's own.
            engine.commit(container, repository=repository_, tag=tag, changes=_restored(base["Config"]))
        finally:
            engine.remove_container(container, force=True, v=True)


def _restored(config: Mapping[str, Any]) -> list[str]:
    """Return the Dockerfile lines that put back what the installing container ran with. Pure.

    >>> _restored({"Cmd": ["train"], "Entrypoint": None, "User": "", "WorkingDir": "/opt/ml/code"})
    ['CMD ["train"]', 'USER root', 'WORKDIR /opt/ml/code']
    """
    entrypoint = config.get("Entrypoint")
    # An image of jobs without a command of its own runs `train`.
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
    yield "wheels/README", b"Wheels of the user's own, if there are any.\n"
    if wheelhouse is not None:
        if not wheelhouse.is_dir():
            raise InputError(f"the wheelhouse {wheelhouse} is not a folder")
        for path in sorted(wheelhouse.glob("*.whl")):
            yield f"wheels/{path.name}", path


def _included(path: Path, root: Path, seen: set[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (name below the file's folder, path) of a requirements file and of those that it includes."""
    path = path.absolute()
    if path in seen:
        return
    seen.add(path)
    content = _present(path).read_text(encoding="utf-8")
    try:
        yield path.resolve().relative_to(root.resolve()).as_posix(), path
    except ValueError:
        raise InputError(f"{path}: requirements to bake must include files of their own folder {root} only") from None
    for line in content.splitlines():
        if (match := _INCLUDE.match(line)) and "://" not in match[1]:
            yield from _included(path.parent / match[1], root, seen)


def _present(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    return path


def _lines(pieces: Any) -> Iterator[str]:
    """Put the engine's pieces of output together to lines."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")
