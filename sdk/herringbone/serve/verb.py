"""`herringbone serve`: SageMaker's API in front of your own hosts, and its access keys."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from herringbone.backends.registry import backend_for
from herringbone.cli.commands import json_option
from herringbone.records.home import find_home
from herringbone.serve.settings import DEFAULT_REGION, Mapping, Settings, check_account, parse_mapping
from herringbone.serve.signing.keys import KeyFile
from herringbone.system.documents import decoded, read_document
from herringbone_contract.errors import UsageError

_file = click.Path(path_type=Path)
_PODS = "k8s:"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.group(invoke_without_command=True)
@click.option(
    "--backend",
    metavar="TYPE",
    help="what runs the jobs: local_process, local, local_gpu, ssh:INVENTORY or slurm:PARTITION",
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen at (default: 127.0.0.1)")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="the port (default: a free one)")
@click.option("--keys", type=_file, metavar="FILE", help="the file of access keys (default: in the folder of jobs)")
@click.option("--buckets", type=_file, metavar="DIR", help="the folder whose subfolders are the buckets of s3://")
@click.option("--mapping", type=_file, metavar="FILE", help="types, images, roles and quotas, as YAML or JSON")
@click.option("--account", default="000000000000", metavar="ID", help="the account id in ARNs (default: 000000000000)")
@click.option("--region", "regions", multiple=True, metavar="NAME", help="a region to answer for (default: us-east-1)")
@click.option("--certificate", type=_file, metavar="FILE", help="serve TLS with this chain of certificates, in PEM")
@click.option("--private-key", type=_file, metavar="FILE", help="the certificate's key")
@click.pass_context
def command(ctx: click.Context, /, keys: Path | None, **options: Any) -> int:
    """Serve SageMaker's API until Ctrl-C: clients of AWS submit training jobs, which run on hosts of your own.

    Clients set AWS_ENDPOINT_URL to the printed address, and a key that `herringbone serve keys add NAME` has made.
    Jobs go on when the service ends, and the next one finds them.
    """
    ctx.obj = keys
    if ctx.invoked_subcommand is not None:
        return 0
    if options["backend"] is None:
        raise click.UsageError("Missing option '--backend'.", ctx)
    certificate, private_key = options["certificate"], options["private_key"]
    if (certificate is None) != (private_key is None):
        raise UsageError("--certificate and --private-key: give both, or none")
    try:
        from herringbone.serve.run import Listener, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "cbor2"):
            raise
        raise UsageError(
            f"the service needs {error.name}: run pip install '.[serve]' in your clone of Herringbone"
        ) from None
    if certificate is None and options["host"] not in _LOOPBACK:
        print(
            f"herringbone: {options['host']} without --certificate: calls are signed, but everybody on the way can "
            "read them",
            file=sys.stderr,
        )
    listener = Listener(options["host"], options["port"], certificate, private_key)
    serve(_settings(**options), _key_file(keys), listener, lambda line: print(line, flush=True))
    return 0


def _settings(
    *, backend: str, account: str, regions: tuple[str, ...], mapping: Path | None, buckets: Path | None, **_: Any
) -> Settings:
    if backend_for(backend, setting="--backend").name == "sagemaker":
        raise UsageError(f"--backend {backend}: jobs of this service run on hosts of your own, not at AWS")
    regions = regions or (DEFAULT_REGION,)
    check_account(account, regions)
    document = Mapping()
    if mapping is not None:
        try:
            document = parse_mapping(
                read_document(decoded(mapping.read_bytes(), str(mapping)), str(mapping)), str(mapping)
            )
        except OSError as error:
            raise UsageError(f"--mapping {mapping}: {error}") from None
    for pattern, kind in (document.instance_types or {}).items():
        if kind.backend is not None:
            # A mistyped one is an error now, not with the first job.
            backend_for(kind.backend, setting=f"--mapping {mapping}: instance_types: {pattern}: backend")
    kinds = [kind.backend for kind in (document.instance_types or {}).values() if kind.backend is not None]
    if buckets is not None and any(each.startswith(_PODS) for each in (backend, *kinds)):
        raise UsageError(f"--buckets {buckets}: pods of {_PODS} do not see this folder; without it, s3:// is a store's")
    if buckets is not None and not buckets.is_dir():
        raise UsageError(f"--buckets {buckets}: there is no such folder")
    # Without `..`: the addresses of jobs have none either.
    folder = None if buckets is None else os.path.abspath(buckets)  # noqa: PTH100
    return Settings(backend=backend, account=account, regions=regions, mapping=document, buckets=folder)


@command.group(name="keys", short_help="add, list and remove access keys")
def keys_group() -> None:
    """Add, list and remove access keys. A running service notices the change."""


@keys_group.command(short_help="make a key for a user, and show it once")
@click.argument("name")
@click.option("--sees-all", is_flag=True, help="the user sees and stops the jobs of all others, too")
@json_option("print the key as JSON")
@click.pass_obj
def add(keys: Path | None, name: str, *, sees_all: bool, as_json: bool) -> int:
    """Make a key for the user NAME, and show it this once.

    The lines are those of a shell: `eval "$(herringbone serve keys add ada)"` sets the variables.
    """
    key = _key_file(keys).add(name, sees_all=sees_all)
    if as_json:
        print(json.dumps({"Name": key.name, "AccessKeyId": key.key_id, "SecretAccessKey": key.secret}))
    else:
        print(f"export AWS_ACCESS_KEY_ID={key.key_id}\nexport AWS_SECRET_ACCESS_KEY={key.secret}")
    return 0


@keys_group.command(name="list", short_help="list the users that have a key")
@json_option("print the list as JSON")
@click.pass_obj
def list_keys(keys: Path | None, *, as_json: bool) -> int:
    """List the users that have a key, without the secrets."""
    rows = [{"Name": key.name, "AccessKeyId": key.key_id, "SeesAll": key.sees_all} for key in _key_file(keys).all()]
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['AccessKeyId']}  {row['Name']}{'  sees all jobs' if row['SeesAll'] else ''}")
    return 0


@keys_group.command(short_help="remove the key of a user")
@click.argument("name")
@json_option("print the name as JSON")
@click.pass_obj
def remove(keys: Path | None, name: str, *, as_json: bool) -> int:
    """Remove the key of the user NAME; calls with it are refused from now on, and the user's jobs stay."""
    _key_file(keys).remove(name)
    if as_json:
        print(json.dumps({"Name": name, "Removed": True}))
    return 0


def _key_file(path: Path | None) -> KeyFile:
    if path is not None:
        return KeyFile(path)
    home = find_home()
    home.make()
    return KeyFile(home.path / "service" / "keys.json")
