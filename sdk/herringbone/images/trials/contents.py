"""A trial's script: write facts about the image to the model folder; as root, also about its files."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator

FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow", "tensorflow-cpu": "tensorflow", "mxnet": "mxnet"}
# Behind those, which a script of Hugging Face's imports as well.
FRAMEWORKS |= {"xgboost": "xgboost", "xgboost-cpu": "xgboost", "scikit-learn": "sklearn"}
TOOLS = ("cc", "gcc", "g++", "clang", "nvcc", "ld", "make")
CACHES = ("/var/lib/apt/lists", "/var/cache/apt/archives", "/root/.cache/pip")
# Names that package managers leave in these folders when they clean up.
EMPTY = {"lock", "partial", "auxfiles"}
NOT_THE_IMAGE = ("/proc", "/sys", "/dev", "/opt/ml")
# A private key has a few KB: larger files need not be opened.
MAX_KEY_BYTES = 65_536


def framework() -> dict[str, str] | None:
    """Return the installed framework, and import it: an import that fails ends the trial."""
    for package, name in FRAMEWORKS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        importlib.import_module("torch" if name == "pytorch" else name)
        return {"name": name, "version": version}
    return None


def private_keys() -> Iterator[str]:
    for folder, folders, files in os.walk("/"):
        # In place, because os.walk reads this list to decide where to descend.
        folders[:] = [name for name in folders if os.path.join(folder, name) not in NOT_THE_IMAGE]
        yield from (path for path in (os.path.join(folder, name) for name in files) if is_private_key(path))


def is_private_key(path: str) -> bool:
    try:
        if os.path.islink(path) or not 0 < os.path.getsize(path) < MAX_KEY_BYTES:
            return False
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return head.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in head


def main() -> None:
    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "uid": os.getuid(),
        "mpi": shutil.which("mpirun") or shutil.which("mpiexec"),
        "framework": framework(),
    }
    if os.getuid() == 0:
        facts["tools"] = [tool for tool in TOOLS if shutil.which(tool)]
        # An image's PATH may lack /usr/sbin, where a server lies.
        facts["sshd"] = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        facts["private_keys"] = sorted(private_keys())
        facts["caches"] = [path for path in CACHES if os.path.isdir(path) and set(os.listdir(path)) - EMPTY]
    with open("/opt/ml/model/facts.json", "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
