"""`herringbone describe`: show everything that is known about a job."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone_contract.masking import printable


@click.command()
@job_name
@json_option("as JSON; else as YAML")
def command(name: str, as_json: bool) -> int:
    described = attach(name).describe()
    print(json.dumps(described) if as_json else as_yaml(described))
    return 0


def as_yaml(values: Any) -> str:
    """Return YAML for a reader: texts of several lines stand as they are, and keys keep their order. Pure.

    >>> print(as_yaml({"FailureReason": "rank 0: KeyError\\n  at train.py:3"}))
    FailureReason: |-
      rank 0: KeyError
        at train.py:3

    Control characters and spaces at the ends of lines, for which YAML would fall back to escapes, are replaced.
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True).rstrip()


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" not in text:
        return dumper.represent_str(printable(text))
    lines = [printable(line.expandtabs(4)).rstrip() for line in text.split("\n")]
    return dumper.represent_scalar("tag:yaml.org,2002:str", "\n".join(lines), style="|")


_Dumper.add_representer(str, _text)
