"""`herringbone images`: build, list, test, push and remove the images that run jobs.

Each action imports its modules when it runs, so that the other verbs start fast.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from herringbone.cli.commands import json_option
from herringbone.images.labels import CONTRACT, Label
from herringbone.show.tables import show_table
from herringbone.system.sizes import shown_bytes
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import OptionError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine
    from herringbone.images.build import Image

_HEAD = ("IMAGE", "FRAMEWORK", "DEVICE", "MB", "CREATED")


@click.group()
def command() -> None:
    """Build, list, test, push and remove the images that run jobs."""


_file = click.Path(path_type=Path)


@command.command(short_help="build an image, unless the same image exists")
@click.argument("framework", metavar="pytorch|tensorflow|mxnet|huggingface|sklearn|xgboost")
@click.option("--device", default="cpu", metavar="cpu|cuda", help="the build of the framework (default: cpu)")
@click.option(
    "--base-image",
    metavar="IMAGE",
    help="the image to build on (default: a Debian for cpu, NVIDIA's CUDA for cuda)",
)
@click.option("--wheelhouse", type=_file, metavar="DIR", help="wheels of your own; the framework's must be among them")
@click.option("--ca-bundle", type=_file, metavar="FILE", help="certificates with which pip trusts the package index")
@click.option(
    "--lock", type=_file, metavar="FILE", help="other versions: a requirements file with hashes (default: ours)"
)
@click.option("--requirements", type=_file, metavar="FILE", help="install these, too, as a layer on top")
@click.option("--tag", metavar="NAME", help="give the image this name, too")
@click.option("--push", "registry", metavar="REGISTRY", help="push the image to this registry")
@click.option("--quiet", is_flag=True, help="no progress")
@json_option("end with the image's description as JSON; progress on stderr")
def build(
    requirements: Path | None, tag: str | None, registry: str | None, quiet: bool, as_json: bool, **recipe: Any
) -> int:
    """Build an image for a framework, unless the same image exists."""
    from herringbone.images import build as building
    from herringbone.images import push as pushing
    from herringbone.images.bake import bake, gather
    from herringbone.images.pip_settings import index_variables, pip_files
    from herringbone.images.recipe import make_recipe

    started = time.monotonic()
    say = _silence if quiet else _say
    files, index = pip_files(os.environ), index_variables(os.environ)
    certificate, wheelhouse = recipe["ca_bundle"] or files.certificate, recipe["wheelhouse"]
    find_links = files.wheels if files.wheels is not None and files.wheels.is_dir() else None
    # Layers of the build stay in the engine's cache.
    if secret := [name for name, value in index.items() if "@" in value]:
        say(f"{', '.join(secret)}: not used for the framework, because the engine would keep the password in it")
    # Before the engine is looked for: a mistake in the flags shows on a machine without one.
    made = make_recipe(
        recipe["framework"],
        device=recipe["device"],
        base=recipe["base_image"],
        lock=recipe["lock"],
        wheelhouse=wheelhouse,
        ca_bundle=certificate,
        find_links=find_links,
        index={name: value for name, value in index.items() if name not in secret},
    )
    packages = {"wheelhouse": wheelhouse or find_links, "ca_bundle": certificate}
    if requirements is not None:
        # Report missing files now, not after a build of minutes.
        gather(requirements, **packages)
    engine = _engine()
    image = building.build(engine, made, say)
    if requirements is not None:
        image = bake(engine, image.name, requirements, say, **packages)
    if tag is not None:
        engine.post(f"/images/{image.name}/tag", repo=tag)
    pushed = None if registry is None else pushing.push(engine, image.name, registry, say)
    _report(image, pushed, time.monotonic() - started, as_json=as_json)
    return 0


def _report(image: Image, pushed: str | None, seconds: float, *, as_json: bool) -> None:
    if as_json:
        described = {"image": image.name, "id": image.id, "built": image.built, "size": image.size_bytes}
        print(json.dumps({**described, "pushed": pushed, "seconds": round(seconds, 3)}))
        return
    state = f"built in {seconds:.1f} s" if image.built else "unchanged"
    print(f"{image.name}  ({shown_bytes(image.size_bytes)}, {state})")
    if pushed is not None:
        print(pushed)


@command.command(short_help="list the images that can run jobs, newest first")
@json_option("one JSON array")
def ls(as_json: bool) -> int:
    """List the images that can run jobs, newest first."""
    images = _engine().get("/images/json", filters={"label": [f"{Label.CONTRACT}={CONTRACT}"]})
    # An image has a row for each of its names. One without a name is listed by its id.
    rows = [_described(image, name) for image in images for name in image["RepoTags"] or [image["Id"]]]
    rows.sort(key=lambda row: row["created"], reverse=True)
    if as_json:
        print(json.dumps(rows))
        return 0
    show_table([_HEAD, *map(_row, rows)])
    return 0


def _described(image: dict[str, Any], name: str) -> dict[str, Any]:
    labels = image["Labels"]
    return {
        "image": name,
        "id": image["Id"],
        "framework": labels.get(Label.FRAMEWORK),
        "version": labels.get(Label.VERSION),
        "device": labels.get(Label.DEVICE),
        "requirements": labels.get(Label.REQUIREMENTS),
        "size": image["Size"],
        "created": datetime.fromtimestamp(image["Created"]).astimezone().isoformat(),
    }


def _row(described: dict[str, Any]) -> tuple[str, ...]:
    framework = " ".join(filter(None, [described["framework"], described["version"]]))
    created = datetime.fromisoformat(described["created"]).strftime("%Y-%m-%d %H:%M:%S")
    return described["image"], framework, described["device"] or "", f"{described['size'] / 1e6:.0f}", created


@command.command(short_help="run trial jobs in any image; exit code 1 if one of them fails")
@click.argument("image")
@json_option("one JSON array")
def test(image: str, as_json: bool) -> int:
    """Run trial jobs in any IMAGE; exit code 1 if one of them fails."""
    from herringbone.images.check import Verdict, check

    findings = []
    for finding in check(_engine(), image):
        findings.append(finding)
        if not as_json:
            # Shown one by one, because each trial takes seconds.
            print(f"{finding.verdict.value:<8} {finding.subject:<15} {finding.detail}", flush=True)
    if as_json:
        print(json.dumps([{**asdict(finding), "verdict": finding.verdict.value} for finding in findings]))
    return 1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0


@command.command(short_help="push an image to a registry")
@click.argument("image")
@click.argument("registry")
@json_option("the name in the registry as JSON; progress on stderr")
def push(image: str, registry: str, as_json: bool) -> int:
    """Push an IMAGE to a REGISTRY, with the login of docker login or to ECR.

    REGISTRY is HOST[:PORT][/PREFIX]; of ECR, ACCOUNT.dkr.ecr.REGION.amazonaws.com[/PREFIX].
    """
    from herringbone.images import push as pushing

    pushed = pushing.push(_engine(), image, registry, _say)
    print(json.dumps({"image": image, "pushed": pushed}) if as_json else pushed)
    return 0


@command.command(short_help="remove outdated images of Herringbone that no container uses")
@click.option("--keep", type=int, default=1, metavar="N", help="the number of images of a kind that stay (default: 1)")
@json_option("the removed images as one JSON array")
def clean(keep: int, as_json: bool) -> int:
    """Remove outdated images of Herringbone that no container uses."""
    from herringbone.images.find import clean as remove_outdated

    if keep < 0:
        raise OptionError(f"--keep {keep}: at least 0")
    removed = remove_outdated(_engine(), keep=keep)
    print(json.dumps(removed) if as_json else "\n".join(removed) or "nothing is outdated")
    return 0


def _engine() -> Engine:
    from herringbone.engine.locate import find_engine

    # No controller inherits these connections, so an engine behind TLS serves as well.
    return find_engine(os.environ, home_folder(), tls=True)


def _say(line: str) -> None:
    # Progress goes to stderr, so that standard output holds the result alone.
    print(line, file=sys.stderr, flush=True)


def _silence(line: str) -> None:
    pass
