"""`herringbone images`: build, list, test, push and remove the images that run jobs.

Each action imports its modules when it runs, so that the other verbs start fast.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.cli.common import aligned
from herringbone.images.labels import CONTRACT, Label
from herringbone_contract.errors import OptionError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine
    from herringbone.images.build import Image

_HEAD = ("IMAGE", "FRAMEWORK", "DEVICE", "MB", "CREATED")


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("images", help="build, list, test, push and remove the images that run jobs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_build(actions.add_parser("build", help="build an image, unless the same image exists"))
    ls = actions.add_parser("ls", help="list the images that can run jobs, newest first")
    ls.add_argument("--json", action="store_true", help="one JSON array")
    ls.set_defaults(act=_ls)
    test = actions.add_parser("test", help="run trial jobs in any image; exit code 1 if one of them fails")
    test.add_argument("image", help="the image's name")
    test.add_argument("--json", action="store_true", help="one JSON array")
    test.set_defaults(act=_test)
    sending = actions.add_parser("push", help="push an image to a registry, with the login of docker login or to ECR")
    sending.add_argument("image", help="the image's name")
    sending.add_argument("registry", help="HOST[:PORT][/PREFIX]; of ECR, ACCOUNT.dkr.ecr.REGION.amazonaws.com[/PREFIX]")
    sending.add_argument("--json", action="store_true", help="the name in the registry as JSON; progress on stderr")
    sending.set_defaults(act=_push)
    cleaning = actions.add_parser("clean", help="remove outdated images of Herringbone that no container uses")
    cleaning.add_argument(
        "--keep", type=int, default=1, metavar="N", help="the number of images of a kind that stay (default: 1)"
    )
    cleaning.add_argument("--json", action="store_true", help="the removed images as one JSON array")
    cleaning.set_defaults(act=_clean)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("framework", metavar="pytorch|tensorflow|mxnet", help="the framework of the image")
    add("--device", default="cpu", metavar="cpu|cuda", help="the build of the framework (default: cpu)")
    add(
        "--base-image",
        metavar="IMAGE",
        help="the image to build on (default: a Debian for cpu, NVIDIA's CUDA for cuda)",
    )
    add("--wheelhouse", type=Path, metavar="DIR", help="wheels of your own; the framework's must be among them")
    add("--ca-bundle", type=Path, metavar="FILE", help="certificates with which pip trusts the package index")
    add("--lock", type=Path, metavar="FILE", help="other versions: a requirements file with hashes (default: ours)")
    add("--requirements", type=Path, metavar="FILE", help="install these, too, as a layer on top")
    add("--tag", metavar="NAME", help="give the image this name, too")
    add("--push", metavar="REGISTRY", help="push the image to this registry")
    add("--quiet", action="store_true", help="no progress")
    add("--json", action="store_true", help="end with the image's description as JSON; progress on stderr")
    parser.set_defaults(act=_build)


def _build(args: argparse.Namespace) -> int:
    from herringbone.images.bake import bake, gather
    from herringbone.images.build import build
    from herringbone.images.push import push
    from herringbone.images.recipe import make_recipe

    started = time.monotonic()
    say = _speaker(args)
    # Before the engine is looked for: a mistake in the flags shows on a machine without one.
    recipe = make_recipe(
        args.framework,
        device=args.device,
        base=args.base_image,
        wheelhouse=args.wheelhouse,
        ca_bundle=args.ca_bundle,
        lock=args.lock,
    )
    if args.requirements is not None:
        # Report missing files now, not after a build of minutes.
        gather(args.requirements, wheelhouse=args.wheelhouse, ca_bundle=args.ca_bundle)
    engine = _engine()
    image = build(engine, recipe, say)
    if args.requirements is not None:
        image = bake(engine, image.name, args.requirements, say, wheelhouse=args.wheelhouse, ca_bundle=args.ca_bundle)
    if args.tag is not None:
        engine.post(f"/images/{image.name}/tag", repo=args.tag)
    pushed = None if args.push is None else push(engine, image.name, args.push, say)
    _report(args, image, pushed, time.monotonic() - started)
    return 0


def _report(args: argparse.Namespace, image: Image, pushed: str | None, seconds: float) -> None:
    if args.json:
        described = {"image": image.name, "id": image.id, "built": image.built, "size": image.size_bytes}
        print(json.dumps({**described, "pushed": pushed, "seconds": round(seconds, 3)}))
        return
    state = f"built in {seconds:.1f} s" if image.built else "unchanged"
    print(f"{image.name}  ({image.size_bytes / 1e6:.0f} MB, {state})")
    if pushed is not None:
        print(pushed)


def _ls(args: argparse.Namespace) -> int:
    images = _engine().get("/images/json", filters={"label": [f"{Label.CONTRACT}={CONTRACT}"]})
    # An image has a row for each of its names. One without a name is listed by its id.
    rows = [_described(image, name) for image in images for name in image["RepoTags"] or [image["Id"]]]
    rows.sort(key=lambda row: row["created"], reverse=True)
    if args.json:
        print(json.dumps(rows))
        return 0
    for line in aligned([_HEAD, *map(_row, rows)]):
        print(line)
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


def _test(args: argparse.Namespace) -> int:
    from herringbone.images.check import Verdict, check

    findings = []
    for finding in check(_engine(), args.image):
        findings.append(finding)
        if not args.json:
            # Shown one by one, because each trial takes seconds.
            print(f"{finding.verdict.value:<8} {finding.subject:<15} {finding.detail}", flush=True)
    if args.json:
        print(json.dumps([{**asdict(finding), "verdict": finding.verdict.value} for finding in findings]))
    return 1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0


def _push(args: argparse.Namespace) -> int:
    from herringbone.images.push import push

    pushed = push(_engine(), args.image, args.registry, _speaker(args))
    print(json.dumps({"image": args.image, "pushed": pushed}) if args.json else pushed)
    return 0


def _clean(args: argparse.Namespace) -> int:
    from herringbone.images.clean import clean

    if args.keep < 0:
        raise OptionError(f"--keep {args.keep}: at least 0")
    removed = clean(_engine(), keep=args.keep)
    print(json.dumps(removed) if args.json else "\n".join(removed) or "nothing is outdated")
    return 0


def _engine() -> Engine:
    from herringbone.engine.locate import find_engine

    # No controller inherits these connections, so an engine behind TLS serves as well.
    return find_engine(os.environ, Path.home(), tls=True)


def _speaker(args: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that shows progress on stderr, so that standard output holds the result alone."""

    def say(line: str) -> None:
        # `push` shows its progress with this function, too, and has no --quiet.
        if not getattr(args, "quiet", False):
            print(line, file=sys.stderr, flush=True)

    return say
