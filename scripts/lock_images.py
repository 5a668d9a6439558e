"""Renew the lock files of the images: the newest versions that containers/*/requirements.in allow, with their hashes.

Usage: `pip install uv; python scripts/lock_images.py [pytorch|tensorflow|mxnet|huggingface|sklearn|xgboost ...]`. One
lock serves every Python >= 3.10. MXNet's lock serves 3.10 and 3.11, Hugging Face's 3.11 and newer.

PyTorch's CPU wheels are on PyTorch's own index, not on PyPI. So the CPU lock is PyPI's resolution without the CUDA
packages, and with the hashes of torch that PyTorch's index publishes. If that index cannot be reached, the lock keeps
its hashes of that version. `--torch-wheel FILE` adds the hash of a wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

CONTAINERS = Path(__file__).resolve().parent.parent / "containers"
FRAMEWORKS = ["pytorch", "tensorflow", "mxnet", "huggingface", "sklearn", "xgboost"]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Packages that torch needs only for CUDA.
CUDA_ONLY = re.compile(r"(nvidia-|cuda-|triton==)")
OLDEST_PYTHON = "3.10"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--torch-wheel", type=Path, action="append", default=[], help="a CPU wheel that you trust")
    args = parser.parse_args()
    if shutil.which("uv") is None:
        print("uv is not on PATH: pip install uv", file=sys.stderr)
        return 1
    for framework in args.framework:
        lock_framework(CONTAINERS / framework, args.torch_wheel)
    return 0


def lock_framework(folder: Path, torch_wheels: list[Path]) -> None:
    requirements = (folder / "requirements.in").read_text() + (CONTAINERS / "shared" / "requirements.in").read_text()
    if "torch==" in requirements:
        cuda = resolve(requirements, "3.11" if folder.name == "huggingface" else OLDEST_PYTHON)
        write(folder / "cuda.txt", cuda)
        write(folder / "cpu.txt", cpu_torch(cuda, CONTAINERS / "pytorch" / "cpu.txt", torch_wheels))
    else:
        write(folder / "cpu.txt", resolve(requirements))
    if folder.name == "xgboost":
        write(folder / "cuda.txt", resolve(requirements.replace("xgboost-cpu==", "xgboost==")))
    if folder.name == "tensorflow":
        write(folder / "cuda.txt", resolve(requirements.replace("tensorflow-cpu==", "tensorflow[and-cuda]==")))


def resolve(requirements: str, python: str = OLDEST_PYTHON) -> list[str]:
    """Return the lock's entries. Each entry is a package's line with the lines of its hashes."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "requirements.in"
        source.write_text(requirements)
        command = ["uv", "pip", "compile", "--universal", "--python-version", python, "--generate-hashes"]
        command += ["--no-config", "--no-annotate", "--no-header", "--system-certs", "--only-binary", ":all:"]
        run = subprocess.run([*command, "--quiet", str(source)], stdout=subprocess.PIPE, text=True, check=True)
    return re.split(r"\n(?=\S)", run.stdout.strip())


def cpu_torch(cuda: list[str], old: Path, wheels: list[Path]) -> list[str]:
    """Return the entries of the CPU lock: the CUDA lock without CUDA's packages, with torch from its own index."""
    torch = next(entry for entry in cuda if entry.startswith("torch=="))
    version = torch.split()[0].partition("==")[2] + "+cpu"
    hashes = published(version) or known(old, version)
    hashes |= {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    if not hashes:
        raise SystemExit(f"no hash of torch {version}: {TORCH_INDEX} cannot be reached; give --torch-wheel FILE")
    locked = " \\\n    ".join([f"torch=={version}", *(f"--hash=sha256:{digest}" for digest in sorted(hashes))])
    others = [entry for entry in cuda if entry != torch and not CUDA_ONLY.match(entry)]
    return [f"--extra-index-url {TORCH_INDEX}", *sorted([*others, locked])]


def published(version: str) -> set[str]:
    """Return the hashes that PyTorch's index publishes, none if it cannot be reached."""
    try:
        with urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=30) as answer:  # noqa: S310 - a constant address
            page = answer.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{TORCH_INDEX}: {error}; the lock keeps its hashes of torch {version}", file=sys.stderr)
        return set()
    file = re.escape("torch-" + version.replace("+", "%2B"))
    return set(re.findall(rf"{file}-[^\"#]*linux[^\"#]*#sha256=([0-9a-f]{{64}})", page))


def known(lock: Path, version: str) -> set[str]:
    """Return the hashes of a version of torch that a lock file has, none if there is no such file."""
    if not lock.exists():
        return set()
    entries = re.split(r"\n(?=\S)", lock.read_text())
    torch = [entry for entry in entries if entry.startswith(f"torch=={version} ")]
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", "".join(torch)))


def write(path: Path, entries: list[str]) -> None:
    head = "# Written by scripts/lock_images.py from requirements.in; renew it there.\n"
    path.write_text(head + "\n".join(entries) + "\n")
    print(f"{path.relative_to(CONTAINERS.parent)}: {sum('==' in entry for entry in entries)} packages")


if __name__ == "__main__":
    sys.exit(main())
