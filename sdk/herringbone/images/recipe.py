"""Collect the files and settings that go into an image, and derive its name. `herringbone.images.build` builds it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from herringbone.images.context import Context, digest_of, wheel_files, wheels_in
from herringbone.images.labels import repository
from herringbone.images.lock import Lock, Wheel, usable
from herringbone.images.pip_settings import setting_lines
from herringbone.images.wheel import find_containers, pack_herringbone
from herringbone_contract.errors import InputError, OptionError

DEVICES = ("cpu", "cuda")
# As many digits as Docker's own short ids have.
_HASH_CHARS = 12


_DEBIAN = "debian:bookworm-slim"
_CUDA_12, _CUDA_13 = "nvidia/cuda:12.9.1-base-ubuntu24.04", "nvidia/cuda:13.0.2-base-ubuntu24.04"


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework for which images are built: its package and its base image for each device.

    The CUDA libraries come with the framework's own wheels. So the base only needs the settings with which the NVIDIA
    runtime gives a container access to GPUs.
    """

    packages: dict[str, str]
    bases: dict[str, str]


def _framework_of(cpu: str, cuda: str | None = None, base: str = _CUDA_13) -> Framework:
    if cuda is None:
        return Framework({"cpu": cpu}, {"cpu": _DEBIAN})
    return Framework({"cpu": cpu, "cuda": cuda}, {"cpu": _DEBIAN, "cuda": base})


FRAMEWORKS = {
    "pytorch": _framework_of("torch", "torch"),
    "tensorflow": _framework_of("tensorflow-cpu", "tensorflow", _CUDA_12),
    # MXNet's last packages for GPUs are for CUDA 11.2 and older.
    "mxnet": _framework_of("mxnet"),
    # transformers with PyTorch.
    "huggingface": _framework_of("transformers", "transformers"),
    # scikit-learn has no build for GPUs.
    "sklearn": _framework_of("scikit-learn"),
    "xgboost": _framework_of("xgboost-cpu", "xgboost", _CUDA_12),
}


# Frameworks with a Dockerfile of their own; the others share one, which gets the framework's name.
_OWN_DOCKERFILES = ("pytorch", "tensorflow", "mxnet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that determines an image, except the id of its base, which only an engine knows."""

    framework: str
    device: str
    package: str
    version: str
    base: str
    context: Context = field(repr=False)

    def tag(self, base_id: str) -> str:
        """Return the image's name, which depends on the whole content and on the base's id. Pure."""
        # The base's id, because its name may mean another image tomorrow.
        arguments = json.dumps([base_id, sorted(self.arguments.items())])
        digest = hashlib.sha256(f"{arguments}\n{self.context.digest}".encode()).hexdigest()
        return f"{repository(self.framework)}:{self.version}-{self.device}-{digest[:_HASH_CHARS]}"

    @property
    def arguments(self) -> dict[str, str]:
        """The Dockerfile's build arguments."""
        return {
            "BASE_IMAGE": self.base,
            "DEVICE": self.device,
            **({} if self.framework in _OWN_DOCKERFILES else {"FRAMEWORK": self.framework}),
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
    find_links: Path | None = None,
    index: Mapping[str, str] | None = None,
) -> Recipe:
    """Collect the files and settings of an image. Reads files, uses no engine.

    >>> make_recipe("pytorch").base
    'debian:bookworm-slim'

    The wheelhouse must have the framework's wheel; `find_links` may have any. `index` are pip's variables about it.
    Raises `OptionError` for an unknown framework or device, `InputError` for files that are missing or do not fit, and
    `ImageError` if Herringbone itself cannot be packed.
    """
    choices = _framework(framework)
    if device not in DEVICES:
        raise OptionError(f"device {device!r}: there is {' and '.join(DEVICES)}")
    if device not in choices.packages:
        raise OptionError(f"device {device!r}: images of {framework} are built for {' and '.join(choices.packages)}")
    package = choices.packages[device]
    folder = find_containers()
    locked = Lock(_read(lock or folder / framework / f"{device}.txt"))
    version = locked.version(package)
    if version is None:
        raise InputError(f"{lock}: locks no single version of {package}, as `{package}==2.13.0` with hashes would")
    wheels = {} if find_links is None else usable(wheels_in(find_links), locked)
    wheels |= {} if wheelhouse is None else _wheels(wheelhouse, locked, package, version)
    trusted = [Wheel(file, digest_of(path)) for file, path in sorted(wheels.items())]
    name, content = pack_herringbone()
    return Recipe(
        framework=framework,
        device=device,
        package=package,
        # A tag must not contain the `+` of a local version, such as 2.13.0+cpu.
        version=version.partition("+")[0],
        base=base or choices.bases[device],
        context=Context(
            {
                "Dockerfile": (folder / _dockerfile(framework)).read_bytes(),
                "framework/install": (folder / "shared" / "install-framework").read_bytes(),
                "framework/lock.txt": locked.with_wheels(trusted, package).text.encode(),
                # Empty without a bundle: the install script tests the size.
                "framework/ca.pem": _certificates(ca_bundle),
                "framework/settings": setting_lines(index or {}),
                **{f"framework/{name}": content for name, content in wheel_files(wheels.values())},
                # Apart from `framework/`, which a change of Herringbone then leaves in the builder's cache.
                "herringbone/install": (folder / "shared" / "install-herringbone").read_bytes(),
                "herringbone/sbom.py": (folder / "shared" / "sbom.py").read_bytes(),
                f"herringbone/{name}": content,
            },
            known_digests={
                **{f"framework/wheels/{wheel.file}": wheel.sha256 for wheel in trusted},
                # They say where packages come from, and the lock what these are: the image is the same.
                **dict.fromkeys(("framework/ca.pem", "framework/settings"), "any"),
            },
        ),
    )


def _dockerfile(framework: str) -> str:
    return f"{framework if framework in _OWN_DOCKERFILES else 'shared'}/Dockerfile"


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise OptionError(f"framework {name!r}: images are built for {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


def _wheels(folder: Path, lock: Lock, package: str, version: str) -> dict[str, Path]:
    """Return the wheels of a wheelhouse that are in the lock. Raises `InputError` without one of the framework."""
    wheels = wheels_in(folder)
    locked = usable(wheels, lock)
    if not any(Wheel(file, "").name == package for file in locked):
        index = f"--extra-index-url {lock.index} " if lock.index else ""
        present = ", ".join(file for file in wheels if Wheel(file, "").name == package) or "none of it"
        raise InputError(
            f"the wheelhouse {folder} has no wheel of {package} {version} (there is {present}): "
            f"pip download --no-deps --dest {folder} {index}{package}=={version}"
        )
    return locked


def _certificates(bundle: Path | None) -> bytes:
    if bundle is None:
        return b""
    content = _read(bundle)
    if "BEGIN CERTIFICATE" not in content:
        raise InputError(f"the CA bundle {bundle} holds no certificate in PEM form")
    # Whoever has the image could read the key in its layers.
    if "PRIVATE KEY" in content:
        raise InputError(f"the CA bundle {bundle} holds a private key; give the certificates alone")
    return content.encode()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path} cannot be read: {reason}") from error
