"""What goes into an image, and the name that follows from it. Building it is `build`'s work."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from herringbone.images.context import Context, digest_of
from herringbone.images.labels import repository
from herringbone.images.lock import Lock, Wheel, usable
from herringbone.images.wheel import find_containers, pack_herringbone
from herringbone_contract.errors import InputError, OptionError

DEVICES = ("cpu", "cuda")
_HASH_CHARS = 12


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that images are built for: by device, its package and the base image to start from.

    The CUDA libraries come with the framework's own wheels, so the base needs no more than what tells the NVIDIA
    runtime what to let in.
    """

    packages: dict[str, str]
    bases: dict[str, str]


FRAMEWORKS = {
    "pytorch": Framework(
        packages={"cpu": "torch", "cuda": "torch"},
        bases={"cpu": "debian:bookworm-slim", "cuda": "nvidia/cuda:13.0.2-base-ubuntu24.04"},
    ),
    "tensorflow": Framework(
        packages={"cpu": "tensorflow-cpu", "cuda": "tensorflow"},
        bases={"cpu": "debian:bookworm-slim", "cuda": "nvidia/cuda:12.9.1-base-ubuntu24.04"},
    ),
    # Its last packages for GPUs are for CUDA 11.2 and older.
    "mxnet": Framework(packages={"cpu": "mxnet"}, bases={"cpu": "debian:bookworm-slim"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that decides what an image will be, but for its base, which only an engine can look up."""

    framework: str
    device: str
    package: str
    version: str
    base: str
    context: Context = field(repr=False)

    def tag(self, base_id: str) -> str:
        """Return the image's name: the same for the same content, another one when anything changes. Pure."""
        arguments = json.dumps([base_id, sorted(self.arguments.items())])
        whole = hashlib.sha256(f"{arguments}\n{self.context.digest}".encode()).hexdigest()
        return f"{repository(self.framework)}:{self.version}-{self.device}-{whole[:_HASH_CHARS]}"

    @property
    def arguments(self) -> dict[str, str]:
        """The Dockerfile's build arguments."""
        return {
            "BASE_IMAGE": self.base,
            "DEVICE": self.device,
            "FRAMEWORK_PACKAGE": self.package,
            "FRAMEWORK_VERSION": self.version,
        }


def make_recipe(
    framework: str,
    *,
    device: str = "cpu",
    base: str | None = None,
    wheelhouse: Path | None = None,
    ca_bundle: Path | None = None,
    lock: Path | None = None,
) -> Recipe:
    """Gather what goes into an image. Reads files, asks no engine.

    >>> make_recipe("pytorch").base
    'debian:bookworm-slim'

    Raises `OptionError` for a framework or device that there is not, `InputError` for files that are missing or do not
    fit, `ImageError` where Herringbone itself cannot be packed.
    """
    known = _framework(framework)
    if device not in DEVICES:
        raise OptionError(f"device {device!r}: there is {' and '.join(DEVICES)}")
    if device not in known.packages:
        raise OptionError(f"device {device!r}: images of {framework} are built for {' and '.join(known.packages)}")
    package = known.packages[device]
    folder = find_containers()
    locked = Lock(_read(lock or folder / framework / f"{device}.txt"))
    version = locked.version(package)
    if version is None:
        raise InputError(f"{lock}: locks no single version of {package}, as `{package}==2.13.0` with hashes would")
    wheels = {} if wheelhouse is None else _wheels(wheelhouse, locked, package, version)
    trusted = [Wheel(file, digest_of(path)) for file, path in sorted(wheels.items())]
    name, content = pack_herringbone()
    return Recipe(
        framework=framework,
        device=device,
        package=package,
        version=version.partition("+")[0],
        base=base or known.bases[device],
        context=Context(
            {
                "Dockerfile": (folder / framework / "Dockerfile").read_bytes(),
                "framework/install": (folder / "shared" / "install-framework").read_bytes(),
                "framework/lock.txt": locked.with_wheels(trusted, package).text.encode(),
                "framework/ca.pem": _certificates(ca_bundle),
                "framework/wheels/README": b"Wheels of the user's own, if there are any.\n",
                **{f"framework/wheels/{file}": path for file, path in wheels.items()},
                "herringbone/install": (folder / "shared" / "install-herringbone").read_bytes(),
                "herringbone/sbom.py": (folder / "shared" / "sbom.py").read_bytes(),
                f"herringbone/{name}": content,
            },
            known={f"framework/wheels/{wheel.file}": wheel.sha256 for wheel in trusted},
        ),
    )


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise OptionError(f"framework {name!r}: images are built for {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


def _wheels(folder: Path, lock: Lock, package: str, version: str) -> dict[str, Path]:
    """Return the wheels of a wheelhouse that the lock asks for; the framework must be among them."""
    if not folder.is_dir():
        raise InputError(f"the wheelhouse {folder} is not a folder")
    all_of_them = {path.name: path for path in sorted(folder.glob("*.whl"))}
    found = usable(all_of_them, lock)
    if not any(Wheel(file, "").name == package for file in found):
        index = f"--extra-index-url {lock.index} " if lock.index else ""
        there = ", ".join(file for file in all_of_them if Wheel(file, "").name == package) or "none of it"
        raise InputError(
            f"the wheelhouse {folder} has no wheel of {package} {version} (there is {there}): "
            f"pip download --no-deps --dest {folder} {index}{package}=={version}"
        )
    return found


def _certificates(bundle: Path | None) -> bytes:
    if bundle is None:
        return b""
    content = _read(bundle)
    if "BEGIN CERTIFICATE" not in content:
        raise InputError(f"the CA bundle {bundle} holds no certificate in PEM form")
    if "PRIVATE KEY" in content:
        raise InputError(f"the CA bundle {bundle} holds a private key; give the certificates alone")
    return content.encode()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path} cannot be read: {reason}") from error
