"""List the options of the estimators with their documentation, for `help()` and for the page of options.

    options_dict.py (names, types as users write them, texts) + Options (defaults) -> option_rows()

It reads the source of `options_dict`, where editors find the same texts, and nothing else.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from typing import Any, NamedTuple, get_args

from herringbone.plan.options import declared as options_dict
from herringbone.plan.options.typed import Options
from herringbone.plan.options.words import InputMode, LogAction, RepositoryAccess

BACKENDS = ("local_process", "local", "ssh", "slurm", "k8s", "ml")
_ALIASES = {"InputMode": InputMode, "LogAction": LogAction, "RepositoryAccess": RepositoryAccess}
_SUFFIX = re.compile(r"(?: Unit: (?P<unit>[^.]*)\.)?(?: Backends: (?P<backends>[^.]*)\.)?$")
_UNPACKED = re.compile(r"Unpack\[(\w+)\]")


class OptionRow(NamedTuple):
    """One keyword argument of the estimators.

    `type` is the text of the type, without None. `unit` is "" where there is none. `backends` are the backends that use
    the option, of `BACKENDS`; the others refuse the option, or name it as unused. `section` is a title.
    """

    name: str
    type: str
    default: Any
    unit: str
    doc: str
    backends: tuple[str, ...]
    section: str


@functools.cache
def option_rows() -> tuple[OptionRow, ...]:
    """Return a row for every argument of every estimator, in the order of the page.

    >>> next((row.type, row.default, row.unit) for row in option_rows() if row.name == "volume_size")
    ('int', 30, 'GB')
    """
    rows = []
    for section in _sections():
        for declaration, text in zip(section.body, section.body[1:], strict=False):
            if isinstance(declaration, ast.AnnAssign):
                assert isinstance(text, ast.Expr), ast.unparse(declaration)
                assert isinstance(text.value, ast.Constant), ast.unparse(declaration)
                rows.append(_row(declaration, str(text.value.value), ast.get_docstring(section) or ""))
    return tuple(rows)


def signature_of(estimator: type) -> inspect.Signature | None:
    """Return the signature of a class with its `**options` written out; None for a class without such options."""
    constructor: Any = inspect.getattr_static(estimator, "__init__")
    own = inspect.signature(constructor)
    last = list(own.parameters.values())[-1]
    unpacked = _UNPACKED.fullmatch(str(last.annotation))
    if unpacked is None:
        return None
    keys = getattr(options_dict, unpacked[1]).__optional_keys__
    options = [
        inspect.Parameter(
            row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=f"{row.type} | None"
        )
        for row in option_rows()
        if row.name in keys
    ]
    # Without `self` at the start and `**options` at the end.
    return own.replace(parameters=[*list(own.parameters.values())[1:-1], *options], return_annotation=estimator)


def _sections() -> list[ast.ClassDef]:
    tree = ast.parse(inspect.getsource(options_dict))
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _row(declaration: ast.AnnAssign, text: str, section: str) -> OptionRow:
    name = ast.unparse(declaration.target)
    suffix = _SUFFIX.search(text)
    assert suffix is not None
    listed = suffix["backends"]
    named = BACKENDS if listed is None else tuple(listed.split(", "))
    return OptionRow(
        name=name,
        type=_type(ast.unparse(declaration.annotation)),
        default={"instance_count": 1, **_defaults()}.get(name),
        unit=suffix["unit"] or "",
        doc=text[: suffix.start()],
        backends=() if named == ("none",) else named,
        section=section,
    )


def _defaults() -> dict[str, Any]:
    options = Options()
    return {name: getattr(options, name) for name in Options.__struct_fields__}


def _type(annotation: str) -> str:
    text = annotation.removesuffix(" | None").replace("os.PathLike[str]", "os.PathLike")
    for name, alias in _ALIASES.items():
        text = re.sub(rf"\b{name}\b", " | ".join(map(repr, get_args(alias))), text)
    return text
