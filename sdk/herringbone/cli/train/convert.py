"""`herringbone convert`: rewrite a script that uses AWS's SDK."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import click

from herringbone.cli.commands import json_option
from herringbone_contract.errors import InputError


@click.command()
@click.argument("script", type=click.Path())
@click.option("--diff", is_flag=True, help="a unified diff instead of the whole script")
@json_option("text, notes, what is left, and whether it is complete, as JSON")
def command(script: str, diff: bool, as_json: bool) -> int:
    """Rewrite a SCRIPT that uses AWS's SDK v2: print the changed script, and notes on stderr.

    The script is parsed, never run. Exit code 1: something could not be converted. The notes end with a list of that:
    line, name, reason, and what to write instead.
    """
    # Imported here, so that help starts without the converter.
    from herringbone.convert.script import convert_script

    try:
        text = Path(script).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{script}: cannot be read: {error}") from None
    converted = convert_script(text, name=script)
    output = converted.text
    if diff:
        lines = (text.splitlines(keepends=True), output.splitlines(keepends=True))
        output = "".join(difflib.unified_diff(*lines, script, script))
    if as_json:
        notes = [{"line": note.line, "kind": note.kind, "text": note.text} for note in converted.notes]
        left = [
            {"line": note.line, "name": name, "why": why, "instead": instead}
            for note in converted.left
            for name, _, reason in [note.text.partition(": ")]
            for why, _, instead in [reason.partition("; ")]
        ]
        print(json.dumps({"text": output, "notes": notes, "left": left, "complete": converted.complete}))
    else:
        # Not `print`, which would add a newline to the script's own last one.
        sys.stdout.write(output)
        # Both may go to one terminal: the script comes first.
        sys.stdout.flush()
        # What is left comes last.
        for note in sorted(converted.notes, key=lambda note: note.kind == "left"):
            print(note, file=sys.stderr)
    return 0 if converted.complete else 1
