"""Divide the devices of this machine among hosts and jobs, and look at what the jobs see.

Usage: python division.py [--device cuda|cpu] [--tiny]

1. `local_gpu`'s division: the same number of devices for each host, none twice; more hosts than devices are refused.
2. A job with `gpus=1` sees one device. While it runs, a job that asks for all devices is refused, and names it.
3. A job that asks for all devices sees all of them.

`--device cpu` puts a program in the place of nvidia-smi that lists two devices. The last line is JSON.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from common import finish, options_of, own_home

_SEEN = "devices seen: "
_SCRIPT = f"""
import os, time
from pathlib import Path

print("{_SEEN}" + os.environ.get("CUDA_VISIBLE_DEVICES", ""), flush=True)
if "RELEASE" in os.environ:
    deadline = time.monotonic() + 60
    while not Path(os.environ["RELEASE"]).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
"""
# It answers `-L`, and knows no process that computes.
_STAND_IN = """#!/bin/sh
[ "$1" = -L ] || exit 0
echo 'GPU 0: Stand-in (UUID: GPU-00000000-0000-0000-0000-00000000000a)'
echo 'GPU 1: Stand-in (UUID: GPU-00000000-0000-0000-0000-00000000000b)'
"""
_SECONDS = 60.0


def divided(gpus: tuple[str, ...]) -> list[str]:
    """Divide the devices among 1, 2, ... hosts as `local_gpu` does. Return what is wrong, in words."""
    from herringbone.backends.docker.gpus import split_gpus
    from herringbone_contract.errors import UnsupportedError

    wrong = []
    for count in range(1, len(gpus) + 1):
        hosts = [f"algo-{number}" for number in range(1, count + 1)]
        shares = split_gpus(gpus, hosts)
        given = [gpu for host in hosts for gpu in shares[host]]
        if len(given) != len(set(given)) or {len(share) for share in shares.values()} != {len(gpus) // count}:
            wrong.append(f"{count} hosts got {shares}")
    try:
        split_gpus(gpus, [f"algo-{number}" for number in range(len(gpus) + 1)])
        wrong.append(f"{len(gpus) + 1} hosts were not refused")
    except UnsupportedError:
        pass
    return wrong


def submit(folder: Path, gpus: int, release: Path | None = None) -> Any:
    """Start a job that claims so many devices, and runs until the file `release` is there."""
    from herringbone import Estimator

    return Estimator(
        "devices.py",
        source_dir=str(folder),
        instance_type="local_process",
        gpus=gpus,
        environment={} if release is None else {"RELEASE": str(release)},
    ).fit(wait=False, logs=False)


def seen(job: Any) -> list[str]:
    """Return the devices that the job printed; wait for the line."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        for line in job.logs(follow=False):
            if _SEEN in line.text:
                return [word for word in line.text.partition(_SEEN)[2].strip().split(",") if word]
        if job.status not in ("InProgress", "Completed"):
            break
        time.sleep(0.1)
    raise RuntimeError(f"job {job.name} printed no devices; it is {job.status}")


def claimed(folder: Path, gpus: tuple[str, ...]) -> list[str]:
    """Run jobs that claim devices. Return what is wrong, in words."""
    from herringbone_contract.errors import HerringboneError

    source, release = folder / "source", folder / "release"
    source.mkdir()
    (source / "devices.py").write_text(_SCRIPT)
    wrong = []
    first = submit(source, 1, release)
    of_first = seen(first)
    if len(of_first) != 1 or of_first[0] not in gpus:
        wrong.append(f"a job with gpus=1 saw {of_first}")
    try:
        submit(source, len(gpus))
        wrong.append("a job that asks for all devices was not refused while another one has one of them")
    except HerringboneError as error:
        if first.name not in str(error):
            wrong.append(f"the refusal does not name {first.name}: {error}")
    release.touch()
    first.wait(_SECONDS)
    last = submit(source, len(gpus))
    last.wait(_SECONDS)
    if sorted(seen(last)) != sorted(gpus):
        wrong.append(f"a job with gpus={len(gpus)} saw {seen(last)}")
    return wrong


def main() -> int:
    options = options_of(__doc__).parse_args()
    with own_home() as folder:
        if options.device == "cpu":
            programs = folder / "bin"
            programs.mkdir()
            (programs / "nvidia-smi").write_text(_STAND_IN)
            (programs / "nvidia-smi").chmod(0o755)
            os.environ["PATH"] = os.pathsep.join([str(programs), os.environ["PATH"]])
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        from herringbone.slots.devices import find_gpus
        from herringbone.slots.probe import NvidiaSmi

        gpus = find_gpus(NvidiaSmi().listing(), os.environ)
        if not gpus:
            return finish({"skipped": "nvidia-smi lists no device"})
        wrong = divided(gpus) + claimed(folder, gpus)
    return finish({"devices": len(gpus), **({"failed": wrong} if wrong else {})})


if __name__ == "__main__":
    sys.exit(main())
