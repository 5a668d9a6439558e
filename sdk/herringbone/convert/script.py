"""Convert a whole script: its imports, its estimator calls, and the calls that ask for a role or a session.

text -> syntax tree -> [names] meaning of each name -> [arguments] notes on each call -> [edits] changed text
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from herringbone.convert.arguments import ESTIMATOR_ORDER, Note, review_argument
from herringbone.convert.edits import Edits
from herringbone.convert.names import ACCOUNT, COUNTERPARTS, Bindings, is_aws, why_left
from herringbone.plan.frameworks import IMAGES
from herringbone.plan.options.names import RENAMED
from herringbone_contract.errors import InputError

_ESTIMATORS = ("Estimator", "Framework", *IMAGES)


class Converted(msgspec.Struct, frozen=True):
    """A converted script, with the notes in the order of its lines."""

    text: str
    notes: tuple[Note, ...]

    @property
    def complete(self) -> bool:
        """True if the script has no code left that Herringbone cannot serve."""
        return all(note.kind != "left" for note in self.notes)


def convert_script(text: str, *, name: str = "script") -> Converted:
    """Convert a script that uses AWS's SDK v2. The script is parsed, never run.

    >>> print(convert_script("from sagemaker.pytorch import PyTorch").text)
    from herringbone import PyTorch

    Comments and layout stay. Raises `InputError` for a text that is no Python.
    """
    try:
        tree = ast.parse(text)
    # The parser's own stack ends in a MemoryError.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name}: no Python that this version can parse: {error}") from None
    return _Conversion(text, tree).result()


class _Conversion:
    def __init__(self, text: str, tree: ast.Module) -> None:
        self._tree = tree
        self._edits = Edits(text)
        self._bindings = Bindings(tree)
        self._notes: list[Note] = []
        self._attributes: set[ast.AST] = set()  # owners: `a.b` in `a.b.c` is not converted by itself
        self._through_module = False  # True once the script contains `herringbone.X`

    def result(self) -> Converted:
        calls = list(self._estimator_calls())
        account = self._account(calls)
        for call, estimator in calls:
            self._convert_call(call, estimator, account)
        self._notes += _missing_methods(self._tree, [call for call, _ in calls])
        # Uses before imports: an import has to keep each name that a use still needs.
        kept_names = self._convert_uses(account)
        self._convert_imports(kept_names)
        # A name can occur twice in a line, and one note is enough.
        notes = sorted(set(self._notes), key=lambda note: (note.line, note.kind, note.text))
        text = self._edits.apply()
        ast.parse(text)  # a result that cannot be parsed would be our mistake
        return Converted(text=text, notes=tuple(notes))

    def _estimator_calls(self) -> Iterator[tuple[ast.Call, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                ours = COUNTERPARTS.get(self._bindings.full_name(node.func) or "")
                if ours in _ESTIMATORS:
                    yield node, ours

    def _account(self, calls: list[tuple[ast.Call, str]]) -> set[ast.AST]:
        """Return the nodes that can go: values used for `role` or `sagemaker_session` alone, and their assignments."""
        passed: list[tuple[str | None, ast.expr]] = [
            (keyword.arg, keyword.value)
            for call, _ in calls
            for keyword in call.keywords
            if keyword.arg in ("role", "sagemaker_session")
        ]
        position = ESTIMATOR_ORDER.index("role")
        passed += [
            ("role", call.args[position]) for call, name in calls if name == "Estimator" and len(call.args) > position
        ]
        # Inside of its function, a parameter of the same name is another variable.
        parameters = {node.arg for node in ast.walk(self._tree) if isinstance(node, ast.arg)}
        removable: set[ast.AST] = {value for option, value in passed if self._option_of(value) == option}
        for statement in ast.walk(self._tree):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                continue
            option, variable = self._option_of(statement.value), statement.targets[0].id
            if option is None or len(statement.targets) > 1 or variable in parameters:
                continue
            uses = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id == variable]
            values = {value for target, value in passed if target == option}
            # Any other use, also of the same name elsewhere, keeps the assignment.
            if all(use in values for use in uses if use is not statement.targets[0]):
                removable |= {statement, statement.value, *values.intersection(uses)}
                self._remove(statement)
                code = ast.unparse(statement)
                self._notes.append(Note(statement.lineno, "changed", f"{code}: removed, nothing else used it"))
        return removable

    def _option_of(self, value: ast.expr) -> str | None:
        """Return the option that takes the result of a call, None for any other expression."""
        return ACCOUNT.get(self._bindings.full_name(value.func) or "") if isinstance(value, ast.Call) else None

    def _remove(self, statement: ast.stmt) -> None:
        # Inside a block it may be the only statement, and an empty block is no Python.
        if statement in self._tree.body:
            self._edits.remove_lines(statement)
        else:
            self._edits.replace(statement, "pass")

    def _convert_call(self, call: ast.Call, estimator: str, account: set[ast.AST]) -> None:
        if estimator == "Estimator":
            for argument, name in zip(call.args, ESTIMATOR_ORDER, strict=False):
                if argument in account:
                    continue
                self._edits.insert_before(argument, f"{name}=")
                self._notes.append(
                    Note(argument.lineno, "changed", f"{name}: by name; the first argument here is another")
                )
            for argument in call.args[len(ESTIMATOR_ORDER) :]:
                self._notes.append(Note(argument.lineno, "left", "an argument without a name; write its name"))
        removed_keywords = [keyword for keyword in call.keywords if keyword.value in account]
        by_position = [argument for argument in call.args if argument in account]
        removed = [
            *((keyword.arg, keyword.value) for keyword in removed_keywords),
            *(("role", argument) for argument in by_position),
        ]
        for option, value in removed:
            self._notes.append(
                Note(
                    value.lineno,
                    "changed",
                    f"{option}: removed; a job here needs no account, one on ml.* takes the caller's",
                )
            )
        self._edits.remove_arguments(call, [*removed_keywords, *by_position])
        names = {keyword.arg for keyword in call.keywords}
        in_the_cloud = any(_is_cloud_type(keyword) for keyword in call.keywords)
        for keyword in call.keywords:
            new = RENAMED.get(keyword.arg or "")
            if keyword in removed_keywords:
                continue
            if new is not None and new in names:
                self._notes.append(Note(keyword.value.lineno, "left", f"{keyword.arg}: {new} is given too; remove one"))
                continue
            self._notes += review_argument(estimator, keyword, on_this_machine=not in_the_cloud)
            if new is not None:
                self._edits.rename(keyword, new)

    def _convert_uses(self, account: set[ast.AST]) -> set[str]:
        """Replace AWS's names by ours; return the first parts of the names that remain."""
        kept_names: set[str] = set()
        # ast.walk yields an attribute before its owner, so `a.b` of `a.b.c` is known as an owner in time.
        removed = {inner for node in account for inner in ast.walk(node)}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                self._attributes.add(node.value)
            if not isinstance(node, (ast.Name, ast.Attribute)) or node in self._attributes or node in removed:
                continue
            name = self._bindings.full_name(node)
            if not is_aws(name):
                continue
            assert name is not None
            if (ours := self._ours(node)) is None:
                root_name = _first(node)
                kept_names.add(root_name)
                self._notes.append(Note(node.lineno, "left", why_left(name)))
            elif isinstance(node, ast.Attribute):
                self._edits.replace(node, f"herringbone.{ours}")
                self._through_module = True
        return kept_names

    def _ours(self, node: ast.Name | ast.Attribute) -> str | None:
        """Return our name for an expression such as `sagemaker.pytorch.PyTorch`, None without a counterpart."""
        return COUNTERPARTS.get(self._bindings.full_name(node) or "")

    def _convert_imports(self, kept_names: set[str]) -> None:
        extra = ["import herringbone"] if self._through_module else []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                from_clause, prefix = "", ""
            elif isinstance(node, ast.ImportFrom) and not node.level:
                from_clause, prefix = f"from {node.module} ", f"{node.module}."
            else:
                continue
            if not any(is_aws(prefix + alias.name) for alias in node.names):
                continue
            ours, stay = self._split_names(node, prefix, kept_names)
            lines = extra + ([f"from herringbone import {', '.join(ours)}"] if ours else [])
            lines += [f"{from_clause}import {', '.join(stay)}"] if stay else []
            extra = []  # one `import herringbone` is enough
            # An import that stays the same keeps the user's formatting.
            if lines == [ast.unparse(node)]:
                continue
            if lines:
                self._edits.replace(node, ("\n" + " " * node.col_offset).join(lines))
            else:
                self._remove(node)
            self._notes.append(Note(node.lineno, "changed", f"{ast.unparse(node)}: now {'; '.join(lines) or 'gone'}"))

    def _split_names(
        self, node: ast.Import | ast.ImportFrom, prefix: str, kept_names: set[str]
    ) -> tuple[list[str], list[str]]:
        """Return our names that an import needs now, and the names that stay in it."""
        ours, stay = [], []
        for alias in node.names:
            name = prefix + alias.name
            renamed = f" as {alias.asname}" if alias.asname else ""
            bound = alias.asname or alias.name.partition(".")[0]
            if name in COUNTERPARTS:
                ours.append(COUNTERPARTS[name] + renamed)
            elif not is_aws(name) or bound in kept_names:
                stay.append(alias.name + renamed)
            elif prefix and name not in ACCOUNT and not self._is_module_used(bound):
                stay.append(alias.name + renamed)
                self._notes.append(Note(node.lineno, "left", why_left(name)))
        return ours, stay

    def _is_module_used(self, bound: str) -> bool:
        """Return True if the script uses attributes of this module: `_convert_uses` has handled each of them."""
        return any(isinstance(node, ast.Attribute) and _first(node) == bound for node in ast.walk(self._tree))


def _missing_methods(tree: ast.Module, estimators: list[ast.Call]) -> Iterator[Note]:
    """Yield a note for each call of a method that Herringbone's estimators do not have."""
    from herringbone.api.estimator import Estimator

    variables = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value in estimators
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id in variables:
            if not hasattr(Estimator, node.func.attr):
                text = f"{owner.id}.{node.func.attr}(): an estimator here trains, and has no such method"
                yield Note(node.lineno, "left", text)
            elif any(keyword.arg == "experiment_config" for keyword in node.keywords):
                yield Note(node.lineno, "left", "experiment_config: there is no experiment service")


def _is_cloud_type(keyword: ast.keyword) -> bool:
    if RENAMED.get(keyword.arg or "", keyword.arg) != "instance_type" or not isinstance(keyword.value, ast.Constant):
        return False
    return str(keyword.value.value).startswith("ml.")


def _first(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
