"""Convert a whole script: its imports, its estimator calls, and the calls that ask for a role or a session.

text -> syntax tree -> [names] meaning of each name -> [arguments] notes on each call -> [edits] changed text
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

import msgspec

from herringbone.convert.arguments import ESTIMATOR_ORDER, Note, is_dropped, review_argument, review_methods
from herringbone.convert.chains import Chains, assignments
from herringbone.convert.edits import Edits
from herringbone.convert.names import ACCOUNT, COUNTERPARTS, ESTIMATORS, Bindings, counterpart, is_aws, why_left
from herringbone.plan.frameworks import IMAGES
from herringbone.plan.options.names import RENAMED
from herringbone_contract.errors import InputError

# In annotations and for importlib. AWS's own addresses begin so, too.
_IN_TEXT = r"'sagemaker(\.(?!amazonaws)\w+)+'"
# Arguments that choose the image of a job on ml.*; None stands for `**options`.
_NAMES_OF_IMAGES = ("image_uri", "image_name", "image", "framework_version", "transformers_version", None)


class Converted(msgspec.Struct, frozen=True):
    """A converted script, with the notes in the order of its lines."""

    text: str
    notes: tuple[Note, ...]

    @property
    def complete(self) -> bool:
        """True if the script has no code left that Herringbone cannot serve."""
        return not self.left

    @property
    def left(self) -> list[Note]:
        """The notes on code that Herringbone cannot serve."""
        return [note for note in self.notes if note.kind == "left"]


def convert_script(text: str, *, name: str = "script") -> Converted:
    """Convert a script that uses AWS's SDK v2. The script is parsed, never run.

    >>> print(convert_script("from sagemaker.pytorch import PyTorch").text)
    from herringbone import PyTorch

    Comments and layout stay. Raises `InputError` for a text that is no Python.
    """
    if name.endswith(".ipynb"):
        raise InputError(f"{name}: a notebook; make a script of it first: jupyter nbconvert --to script {name}")
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
        self._chains = Chains(tree, self._bindings)
        # A variable -> its values, None for one that is no text.
        self._texts: dict[str, set[str | None]] = {}
        for variable, value in assignments(tree):
            self._texts.setdefault(variable, set()).add(_text(value))
        self._dropped: set[ast.AST] = set()  # arguments that went
        self._through_module: set[str] = set()  # names whose uses are now `herringbone.X`

    def result(self) -> Converted:
        calls = list(self._estimator_calls())
        account = self._account(calls)
        for call, estimator in calls:
            self._convert_call(call, estimator, account)
        self._notes += review_methods(self._tree, self._chains, self._edits)
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
            if isinstance(node, ast.Call) and node.func not in self._chains.kept:
                ours = COUNTERPARTS.get(self._bindings.full_name(node.func) or "")
                if ours in (*ESTIMATORS, "remote"):
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
            ("role", call.args[position])
            for call, name in calls
            if name == "Estimator" and len(call.args) > position and _is_nameable(call)
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
        if estimator == "Estimator" and _is_nameable(call):
            for argument, name in zip(call.args, ESTIMATOR_ORDER, strict=False):
                if argument in account:
                    continue
                self._edits.insert_before(argument, f"{name}=")
                text = f"{name}: by name; the first argument here is another"
                self._notes.append(Note(argument.lineno, "changed", text))
        elif estimator == "Estimator":
            text = f"{ast.unparse(call.func)}: the order of arguments is another here; write the name of each"
            self._notes.append(Note(call.lineno, "left", text))
        removed_keywords = [keyword for keyword in call.keywords if keyword.value in account]
        by_position = [argument for argument in call.args if argument in account]
        removed = [(keyword.arg, keyword.value) for keyword in removed_keywords]
        removed += [("role", argument) for argument in by_position]
        for option, value in removed:
            why = "removed; a job here needs no account, one on ml.* takes the caller's"
            self._notes.append(Note(value.lineno, "changed", f"{option}: {why}"))
        cloud_type = self._cloud_type(call, estimator)
        if cloud_type is not None:
            self._notes.append(Note(cloud_type.lineno, "left", _in_the_cloud(cloud_type, dict(removed))))
        # Each of them has its note.
        dropped = [keyword for keyword in call.keywords if keyword not in removed_keywords and is_dropped(keyword)]
        self._dropped |= {inner for keyword in dropped for inner in ast.walk(keyword)}
        self._edits.remove_arguments(call, [*removed_keywords, *dropped, *by_position])
        names = {keyword.arg for keyword in call.keywords}
        if cloud_type is not None and estimator in IMAGES and names.isdisjoint(_NAMES_OF_IMAGES):
            text = "image_uri: missing, and no version of AWS's image either; write one, or hosts of your own"
            self._notes.append(Note(call.lineno, "left", text))
        for keyword in call.keywords:
            new = None if keyword in dropped else RENAMED.get(keyword.arg or "")
            if keyword in removed_keywords:
                continue
            if new is not None and new in names:
                self._notes.append(Note(keyword.value.lineno, "left", f"{keyword.arg}: {new} is given too; remove one"))
                continue
            self._notes += review_argument(estimator, keyword, on_this_machine=cloud_type is None)
            if new is not None:
                self._edits.rename(keyword, new)

    def _cloud_type(self, call: ast.Call, estimator: str) -> ast.expr | None:
        """Return the instance type of a call that trains at AWS: a text, or a variable that gets no other value."""
        named = dict(zip(ESTIMATOR_ORDER, call.args, strict=False)) if estimator == "Estimator" else {}
        for name, value in [*named.items(), *((keyword.arg, keyword.value) for keyword in call.keywords)]:
            if RENAMED.get(name or "", name) == "instance_type":
                texts = self._texts.get(value.id, {None}) if isinstance(value, ast.Name) else {_text(value)}
                if all(text is not None and text.startswith("ml.") for text in texts):
                    return value
        return None

    def _convert_uses(self, account: set[ast.AST]) -> set[str]:
        """Replace AWS's names by ours; return the first parts of the names that remain."""
        kept_names: set[str] = set()
        converted: list[tuple[ast.Name | ast.Attribute, str]] = []
        # ast.walk yields an attribute before its owner, so `a.b` of `a.b.c` is known as an owner in time.
        removed = {inner for node in account for inner in ast.walk(node)} | self._dropped
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Constant) and re.fullmatch(_IN_TEXT, f"{node.value!r}"):
                text = f"{node.value!r}: in a text, which is not converted; write the name in herringbone"
                self._notes.append(Note(node.lineno, "left", text))
            if not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            name = self._bindings.full_name(node)
            # Of `WarmStartTypes.X` and `PyTorch.attach`, the owner is converted.
            of_ours = counterpart(name) is not None and name not in COUNTERPARTS and node not in self._chains.kept
            is_owner = node in self._attributes
            if isinstance(node, ast.Attribute) and not of_ours:
                self._attributes.add(node.value)
            if name is None or is_owner or of_ours or node in removed or not is_aws(name):
                continue
            if node in self._chains.kept:
                line, other = self._chains.kept[node]
                text = f"{name}: stays AWS's, as {other} of line {line}; to train here, remove that, and convert again"
            elif name in COUNTERPARTS:
                converted.append((node, name))
                continue
            else:
                text = why_left(name)
            kept_names.add(_first(node))
            self._notes.append(Note(node.lineno, "left", text))
        for node, name in converted:
            if isinstance(node, ast.Attribute) or node.id in kept_names | self._bindings.starred:
                self._edits.replace(node, f"herringbone.{COUNTERPARTS[name]}")
                self._through_module.add(_first(node))
        return kept_names

    def _convert_imports(self, kept_names: set[str]) -> None:
        is_imported = False  # True once the module itself, not a function of it, imports herringbone
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
            bound = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            is_needed = "*" in bound or not bound.isdisjoint(self._through_module)
            extra = ["import herringbone"] if self._through_module and is_needed and not is_imported else []
            is_imported = is_imported or (bool(extra) and node in self._tree.body)
            lines = extra + ([f"from herringbone import {', '.join(ours)}"] if ours else [])
            lines += [f"{from_clause}import {', '.join(stay)}"] if stay else []
            # An import that stays the same keeps the user's formatting.
            if lines == [ast.unparse(node)]:
                continue
            if lines:
                self._edits.replace_by_lines(node, lines)
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
            if name in COUNTERPARTS and bound not in kept_names:
                # A name that has changed keeps the script's.
                ours.append(COUNTERPARTS[name] + ("" if bound == COUNTERPARTS[name] else f" as {bound}"))
            elif not is_aws(name) or bound in kept_names:
                stay.append(alias.name + renamed)
            elif prefix and name not in ACCOUNT and not self._is_module_used(bound):
                stay.append(alias.name + renamed)
                self._notes.append(Note(node.lineno, "left", why_left(name)))
        return ours, stay

    def _is_module_used(self, bound: str) -> bool:
        """Return True if the script uses attributes of this module: `_convert_uses` has handled each of them."""
        return any(isinstance(node, ast.Attribute) and _first(node) == bound for node in ast.walk(self._tree))


def _is_nameable(call: ast.Call) -> bool:
    """Return True if the names of all arguments without one are known: there are few, and none after a `*`."""
    return len(call.args) <= len(ESTIMATOR_ORDER) and not any(isinstance(each, ast.Starred) for each in call.args)


def _in_the_cloud(instance_type: ast.expr, removed: Mapping[str | None, ast.expr]) -> str:
    """Return the note on a job that still trains at AWS."""
    role = ", with role=... if the caller of AWS is a user" if "role" in removed else ""
    return (
        f"instance_type={ast.unparse(instance_type)}: trains at AWS, in your account; to train here, write "
        f"'local_process', 'local', 'ssh:...' or 'slurm:...'; to stay there, keep it{role}"
    )


def _text(value: ast.AST) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _first(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
