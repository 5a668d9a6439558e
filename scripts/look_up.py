"""Write what the code defines into the pages of docs/look-up.

    .venv/bin/python scripts/look_up.py            # after a change of an option, a verb, an error or a member of a job

    options_dict.py      -> options.md          one table for each section of options
    click commands       -> command-line.md     one part for each verb
    TrainingJob          -> training-job.md     its members, and the values that they return
    classes of errors    -> errors.md           one row for each error
    serve/actions.py     -> service.md          the actions of the service, and the fate of each member
    library_hooks        -> library-hooks.md    tested releases of other libraries, and the hooks into them
    pyproject.toml       -> start/install.md    the extras, and their packages

A page contains `<!-- begin NAME -->` and `<!-- end NAME -->`, and this script writes the text between them. The pages
are committed, so that they can be read on a code host; tests/docs/test_look_up.py fails if a page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import tomllib

from herringbone import TrainingJob
from herringbone.api.job import attach
from herringbone.cli.__main__ import GROUP
from herringbone.plan.options.reference import BACKENDS, OptionRow, option_rows
from herringbone.records.logs import LogLine, Metric
from herringbone.s3.front.operations import OPERATIONS
from herringbone.serve.actions import ACTIONS
from herringbone_contract.events import hugging_face
from herringbone_contract.failure import Failure
from herringbone_contract.library_hooks import TESTED, Hook
from herringbone_entry.ranks import library_hooks as rank_hooks
from herringbone_parallel.tensorflow import library_hooks as tensorflow_hooks
from herringbone_parallel.torch import hugging_face_hooks
from herringbone_parallel.torch import library_hooks as torch_hooks

ROOT = Path(__file__).resolve().parents[1]
PAGES = (*sorted((ROOT / "docs" / "look-up").glob("*.md")), ROOT / "docs" / "start" / "install.md")
FIX = "To fix: "
_PACKAGES = ("contract", "sdk", "entrypoints", "parallel")
_PART = re.compile(r"(<!-- begin (\S+) -->).*?(<!-- end \2 -->)", re.DOTALL)
_PAGE = re.compile(r"docs/([\w/-]+)\.md")
# The width of click's texts does not matter: a page has lines of any length.
_WIDE = {"terminal_width": 400, "max_content_width": 400}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown.

    >>> print(table(["option", "type"], [["`x`", "a | b"]]))
    | option | type |
    |---|---|
    | `x` | a \\| b |
    """
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|---" * len(line) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def options() -> str:
    """Return a heading and a table for each section of the estimators' options."""
    sections: dict[str, list[OptionRow]] = {}
    for row in option_rows():
        sections.setdefault(row.section, []).append(row)
    return "\n\n".join(
        f"## {title}\n\n" + table(("option", "type", "default", "backends", "meaning"), map(_option, rows))
        for title, rows in sections.items()
    )


def _option(row: OptionRow) -> tuple[str, ...]:
    default = "-" if row.default is None else f"`{row.default!r}`"
    if row.default in ({}, (), ""):
        default = "empty"
    backends = {BACKENDS: "all", (): "none"}.get(row.backends) or ", ".join(row.backends)
    unit = f" Unit: {row.unit}." if row.unit else ""
    return f"`{row.name}`", f"`{row.type}`", default, backends, f"{row.doc}{unit}"


def verbs() -> str:
    """Return a table of all verbs, and a part for each with its usage and its options."""
    context = click.Context(GROUP, info_name="herringbone", **_WIDE)
    found = list(_commands(GROUP, context))
    rows = [
        (
            f"[`{path.removeprefix('herringbone ')}`](#{path.replace(' ', '-')})",
            _sentence(command.get_short_help_str(400)),
        )
        for path, command, _ in found
    ]
    return "\n\n".join([table(("verb", "what it does"), rows), *(_verb(*item) for item in found)])


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, context, name, **_WIDE)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield inner.command_path, command, inner
            yield from _commands(command, inner)
        else:
            yield inner.command_path, command, inner


def _verb(path: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    records = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    text = _sentence(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    rows = [(f"`{flags}`", _sentence(meaning)) for flags, meaning in records if meaning and "--help" not in flags]
    return f"### `{path}`\n\n{text}\n\n```console\n$ {usage}\n```\n\n" + table(("option", "meaning"), rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def training_job() -> str:
    """Return the members of a job, and the fields of the values that they return."""
    members = {name: member for name, member in vars(TrainingJob).items() if not name.startswith("_")}
    properties = [
        (f"`{name}`", f"`{member.fget.__annotations__['return']}`", _flat(member.__doc__))
        for name, member in members.items()
        if isinstance(member, property)
    ]
    methods = [
        _function(name, getattr(TrainingJob, name), member)
        for name, member in members.items()
        if not isinstance(member, property)
    ]
    values = [_value(kind) for kind in (LogLine, Metric, Failure)]
    parts = ["## Properties", table(("property", "type", "meaning"), properties)]
    return "\n\n".join([*parts, "## Methods", *methods, _function("attach", attach, attach), "## Values", *values])


def _function(name: str, function: Any, member: Any) -> str:
    signature = inspect.signature(function)
    shown = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    owner = (
        ""
        if name == "attach" and not isinstance(member, classmethod)
        else "TrainingJob."
        if isinstance(member, classmethod)
        else "job."
    )
    text = str(signature.replace(parameters=shown)).replace("'", "").replace("<built-in function print>", "print")
    return f"### `{owner}{name}`\n\n```python\n{owner}{name}{text}\n```\n\n{_docstring(function)}"


def _value(kind: type) -> str:
    fields = [
        (f"`{name}`", f"`{getattr(annotation, '__forward_arg__', annotation)}`")
        for name, annotation in inspect.get_annotations(kind).items()
    ]
    return f"### `{kind.__name__}`\n\n{_docstring(kind)}\n\n{table(('field', 'type'), fields)}"


def _docstring(member: Any) -> str:
    """Return a docstring as Markdown: its example becomes a block."""
    paragraphs = []
    for paragraph in (inspect.getdoc(member) or "").split("\n\n"):
        if paragraph.startswith(">>>"):
            code = re.sub(r" +# doctest:.*", "", paragraph)
            paragraphs.append(f"```pycon\n{code}\n```")
        else:
            paragraphs.append(_flat(paragraph))
    return "\n\n".join(paragraphs)


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def errors() -> str:
    """Return a row for each error that a user can meet, from A to Z."""
    return table(
        ("error", "is a", "meaning", "what to do"), (_error(*item) for item in sorted(error_classes().items()))
    )


def error_classes() -> dict[str, tuple[list[str], str]]:
    """Return the bases and the docstring of every public error of the tree, read from the sources."""
    declared: dict[str, tuple[list[str], str]] = {}
    for folder in _PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Error)" in text or "(Exception)" in text or "Error, " in text:
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef):
                        bases = [ast.unparse(base) for base in node.bases]
                        declared.setdefault(node.name, (bases, ast.get_docstring(node) or ""))

    def in_tree(name: str) -> bool:
        return name == "HerringboneError" or any(map(in_tree, declared.get(name, ([], ""))[0]))

    return {name: item for name, item in declared.items() if in_tree(name) and not name.startswith("_")}


def _error(name: str, declaration: tuple[list[str], str]) -> tuple[str, ...]:
    bases, text = declaration
    meaning, _, fix = text.partition(f"\n\n{FIX}")
    return (
        f"`{name}`",
        ", ".join(f"`{base}`" for base in bases),
        _links(_flat(meaning)),
        _links(_flat(fix)),
    )


def _links(text: str) -> str:
    """Replace the names of pages by links that are right on a page of docs/look-up."""
    return _PAGE.sub(lambda match: f"[{_title(match[1])}](../{match[1]}.md)".replace("../look-up/", ""), text)


def _title(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


# Members of S3's requests that are taken and change nothing, each with the reason.
IGNORED_IN_S3 = {
    "x-amz-storage-class": "the disk of the folder is the only class",
    "x-amz-server-side-encryption": "encryption is the disk's own affair, and no answer confirms it",
    "x-amz-request-payer": "nobody pays",
    "x-amz-sdk-checksum-algorithm": "the checksum itself is checked",
    "x-amz-checksum-algorithm": "checksums are checked when content arrives, and not kept",
    "x-amz-checksum-type": "checksums are checked when content arrives, and not kept",
    "x-amz-checksum-mode": "answers have no checksums",
    "fetch-owner": "all objects belong to the service's account",
}


def service() -> str:
    """Return a table for each operation of `herringbone serve`, and one of S3's."""
    return _service() + "\n\n" + _s3()


def _s3() -> str:
    used = (
        (f"`{each.name}`", f"{each.method} {each.resource}{each.option and f' ?{each.option}'}", _members(each.members))
        for each in OPERATIONS
    )
    ignored = ((f"`{name}`", reason) for name, reason in IGNORED_IN_S3.items())
    return "\n\n".join(
        (
            "## S3",
            "Every other operation, option of a query, and header that begins with `x-amz-` or `if-` answers 501.",
            table(("operation", "request", "members"), used),
            "These members are taken, and change nothing:",
            table(("member", "why"), ignored),
        )
    )


def _members(members: tuple[str, ...]) -> str:
    return ", ".join(f"`{member}`" + "..." * member.endswith("-") for member in members)


def _service() -> str:
    return "\n\n".join(
        f"## {action.name}\n\n"
        + table(
            ("member", "fate", "why, or how"),
            ((f"`{path}`", rule.fate.value, rule.reason) for path, rule in action.rules.items()),
        )
        for action in ACTIONS.values()
        if action.rules
    )


def hooks() -> str:
    """Return the tested releases of each library, and its hooks, from A to Z."""
    rows: dict[str, set[tuple[str, str]]] = {library: set() for library in TESTED}
    for module in (torch_hooks, hugging_face_hooks, hugging_face, tensorflow_hooks, rank_hooks):
        for value in vars(module).values():
            for hook in value if isinstance(value, tuple) else ():
                if isinstance(hook, Hook):
                    rows[hook.library].add((f"`{hook.place}`", hook.reason))
    return "\n\n".join(
        [
            table(("library", "oldest", "middle", "newest"), ((name, *TESTED[name]) for name in TESTED)),
            *(f"## {name}\n\n" + table(("place", "reason"), sorted(rows[name])) for name in rows if rows[name]),
        ]
    )


# What each extra is for. `dev` and `docs` are for whoever changes Herringbone.
EXTRAS = {
    "torch": "scripts for PyTorch, on this machine",
    "tensorflow": "[TensorFlow](../do/tensorflow.md)",
    "mxnet": "[MXNet](../do/mxnet.md), on Python 3.10 or 3.11",
    "mpi": "the launcher `mpi`, which model parallelism uses",
    "debug": "[a debugger](../do/debug.md) in a rank",
    "aws": "[SageMaker](../do/sagemaker.md), and data and checkpoints [on S3](../do/s3.md)",
    "kubernetes": "jobs on a Kubernetes cluster, `k8s:NAMESPACE`",
    "page": "the page of jobs in a browser, [`herringbone page`](../do/page.md)",
    "serve": "SageMaker's API for other programs, [`herringbone serve`](../do/serve.md)",
    "top": "the live view of [`herringbone top`](../do/top.md)",
    "mlflow": "[export to a tracker](../do/trackers.md)",
    "tensorboard": "[export to a tracker](../do/trackers.md)",
    "wandb": "[export to a tracker](../do/trackers.md)",
    "trackio": "[export to a tracker](../do/trackers.md)",
    "gpu": "the use of NVIDIA GPUs in [`top`](../do/top.md) and [metrics](../do/metrics.md)",
    "remote": "[functions as jobs](../do/remote.md)",
    "tune": '`strategy="Bayesian"` of a [search](../do/tune.md), except on SageMaker',
    "examples": "the quickstart and some examples",
}


def extras() -> str:
    """Return a row for each extra that users choose from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = {name: needs for name, needs in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    return table(
        ("extra", "packages", "for"),
        ((f"`{name}`", ", ".join(f"`{need}`" for need in needs), EXTRAS[name]) for name, needs in packages.items()),
    )


PARTS = {
    "extras": extras,
    "options": options,
    "verbs": verbs,
    "training-job": training_job,
    "errors": errors,
    "service": service,
    "hooks": hooks,
}


def fill(text: str) -> str:
    """Return a page with all its generated parts up to date."""
    return _PART.sub(lambda match: f"{match[1]}\n\n{PARTS[match[2]]()}\n\n{match[3]}", text)


def main() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            path.write_text(filled, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
