"""`herringbone download`: bring a job's model, output, checkpoints or logs into a folder."""

from __future__ import annotations

import json

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import JobName
from herringbone.records.download import PARTS, Part
from herringbone_contract.errors import near_words


class _Words(JobName):
    """Words of which the first may be a job, which the shell completes."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return value


@click.command()
@click.argument("words", nargs=-1, metavar="NAME [model|output|checkpoints|logs] [FOLDER]", type=_Words())
@click.option("--last", is_flag=True, help="the newest job, instead of NAME; also as the NAME -")
@json_option("the folder as JSON")
def command(words: tuple[str, ...], *, last: bool, as_json: bool) -> int:
    """Bring a job's model, or another part of its results, into a new FOLDER (default: NAME-PART).

    The output is what the script wrote to SM_OUTPUT_DATA_DIR; checkpoints and logs are those of this moment. Write
    ./model for a folder that is called like a part.
    """
    if last:
        words = ("-", *words)
    if not words:
        raise click.UsageError(
            "Missing argument 'NAME': write the job's name, its beginning, or --last for the newest job."
        )
    part, folder = parse_words(words[1:])
    name = JobName().convert(words[0], None, None)
    result = attach(name).download(part, folder or f"{name}-{part}")
    print(json.dumps({"folder": str(result)}) if as_json else result)
    return 0


def parse_words(words: tuple[str, ...]) -> tuple[Part, str | None]:
    """Return the part and the folder that the words behind NAME name. Pure.

    >>> parse_words(("logs",)), parse_words(("./logs",)), parse_words(("output", "plots"))
    (('logs', None), ('model', './logs'), ('output', 'plots'))

    Raises `UsageError` for a folder that is nearly called like a part.
    """
    named = next((part for part in PARTS if words[:1] == (part,)), None)
    rest = words if named is None else words[1:]
    if len(rest) > 1:
        raise click.UsageError(f"{words[0]!r}: expected {', '.join(PARTS)} and one folder after NAME.")
    is_word = bool(rest) and named is None and "/" not in rest[0]
    near = near_words(rest[0], PARTS, cutoff=0.75) if is_word else ()
    if near:
        raise click.UsageError(f"{rest[0]!r}: did you mean {near[0]}? Write ./{rest[0]} for a folder of that name.")
    return named or "model", rest[0] if rest else None
