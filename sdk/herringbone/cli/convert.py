"""`herringbone convert`: rewrite a script that uses AWS's SDK."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path

from herringbone_contract.errors import InputError


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "convert",
        help="rewrite a script that uses AWS's SDK v2",
        description="Print the changed script, and notes on stderr. The script is parsed, never run. "
        "Exit code 1: something could not be converted; its notes say `left`.",
    )
    parser.add_argument("script", help="a Python file")
    parser.add_argument("--diff", action="store_true", help="a unified diff instead of the whole script")
    parser.add_argument("--json", action="store_true", help="text, notes and whether it is complete, as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # Imported here, so that the other verbs start without the converter.
    from herringbone.convert.script import convert_script

    try:
        text = Path(args.script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{args.script}: cannot be read: {error}") from None
    converted = convert_script(text, name=args.script)
    output = converted.text
    if args.diff:
        lines = (text.splitlines(keepends=True), output.splitlines(keepends=True))
        output = "".join(difflib.unified_diff(*lines, args.script, args.script))
    if args.json:
        notes = [{"line": note.line, "kind": note.kind, "text": note.text} for note in converted.notes]
        print(json.dumps({"text": output, "notes": notes, "complete": converted.complete}))
    else:
        # Not `print`, which would add a newline to the script's own last one.
        sys.stdout.write(output)
        # Both may go to one terminal: the script comes first.
        sys.stdout.flush()
        for note in converted.notes:
            print(note, file=sys.stderr)
    return 0 if converted.complete else 1
