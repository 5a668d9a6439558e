"""Snippets of docstrings: estimators take their arguments. tests/docs runs the snippets of the pages."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from herringbone import Estimator, MXNet, PyTorch, TensorFlow
from herringbone.plan.options.typed import Options
from herringbone.plan.request import DISTRIBUTION_RULES
from herringbone_contract.distribution import parse

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    ROOT / "README.md",
]
SOURCES = [path for room in ("contract", "sdk", "entrypoints", "parallel") for path in (ROOT / room).rglob("*.py")]
FILES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES)}
ESTIMATORS = {kind.__name__: kind for kind in (Estimator, PyTorch, TensorFlow, MXNet)}
# Fenced blocks, and blocks that are indented below an empty line.
BLOCK = re.compile(r"^ *```[a-z]*\n(.*?)^ *```|\n\n((?: {4}.*\n?)+)", re.MULTILINE | re.DOTALL)


def blocks(name):
    nodes = ast.walk(ast.parse(FILES[name]))
    examples = [
        ast.get_docstring(node) or "" for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    ]
    # A doctest's prompts are no part of its code.
    text = "\n\n".join(re.sub(r"^(>>>|\.\.\.) ?", "    ", example, flags=re.MULTILINE) for example in examples)
    return [textwrap.dedent(fenced or indented) for fenced, indented in BLOCK.findall(f"\n\n{text}")]


def estimator_calls():
    for name in filter(lambda name: name.endswith(".py"), FILES):
        for block in blocks(name):
            for match in re.finditer(rf"\b({'|'.join(ESTIMATORS)})\(", block):
                call = complete_call(block[match.start() :])
                if call is not None:
                    yield pytest.param(match[1], call, id=f"{name}: {' '.join(call.split())[:60]}")


def complete_call(text):
    """Return the shortest call at the beginning of a text; None where the text is no Python."""
    for end in (match.end() for match in re.finditer(r"\)", text)):
        try:
            node = ast.parse(text[:end], mode="eval").body
        except SyntaxError:
            continue
        return text[:end] if isinstance(node, ast.Call) else None
    return None


CALLS = list(estimator_calls())


@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_estimators_take_the_arguments_of_the_snippets(kind, call):
    node = ast.parse(call, mode="eval").body
    parameters = inspect.signature(ESTIMATORS[kind]).parameters
    positional = [
        argument for argument in node.args if not isinstance(argument, ast.Constant) or argument.value is not ...
    ]
    if positional and isinstance(positional[0], ast.Constant):
        assert next(iter(parameters)) == "entry_point" or not str(positional[0].value).endswith((".py", ".sh"))
    names = {keyword.arg for keyword in node.keywords} - {None}
    assert names <= {*parameters, *Options.__struct_fields__} | {"entry_point", "source_dir", "instance_type"} | {
        "instance_count", "hyperparameters"
    }  # fmt: skip
    for keyword in node.keywords:
        if keyword.arg == "distribution":
            try:
                value = ast.literal_eval(keyword.value)
            except ValueError:
                continue  # a name, or `{...}`
            if "..." not in ast.unparse(keyword.value):
                parse(value, framework=DISTRIBUTION_RULES.get(ESTIMATORS[kind]._kind))


def test_snippets_are_found():
    assert len(CALLS) > 5


def test_no_text_installs_herringbone_from_an_index():
    """Herringbone is installed from a checkout; on an index the name may belong to somebody else."""
    pattern = re.compile(r"pip install [\"']?herringbone|[\"'`]herringbone\[")
    assert [name for name, text in FILES.items() if pattern.search(text)] == []
