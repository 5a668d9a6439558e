"""Find the calls that stay with AWS's SDK: its objects take none of Herringbone's, and the reverse.

    estimator = PyTorch(...)                        # would be Herringbone's
    step = TrainingStep(estimator=estimator)        # is AWS's, so the estimator stays AWS's, too

Variables are known by their names alone; the script is never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from herringbone.convert.names import Bindings, counterpart, is_aws, is_object
from herringbone.plan.options.names import LEFT_OUT

# Methods of Herringbone's classes that take other objects. Those that it lacks (`deploy`) are reported by themselves.
_TAKES_OBJECTS = ("fit", "create", "transfer_learning_tuner", "identical_dataset_and_algorithm_tuner")
# Methods whose result has their object inside; in a pipeline, `fit` returns the arguments of a step.
_HANDS_ON = ("fit", "items", "values", "get", "copy")
# Methods that put an object into another one.
_GROWS = ("append", "extend", "insert", "update", "setdefault")


class Chains:
    """The objects that a script makes, the variables that hold them, and the calls that get them."""

    def __init__(self, tree: ast.AST, bindings: Bindings) -> None:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = [(call, bindings.full_name(call.func)) for call in calls]
        # A call that makes an object of Herringbone's -> its class.
        self.ours = {call: ours for call, name in names if (ours := counterpart(name)) is not None}
        self._foreign = {call: name for call, name in names if name and is_aws(name) and call not in self.ours}
        self._objects = {*self.ours, *(call for call, name in self._foreign.items() if is_object(name))}
        self._variables: dict[str, set[ast.Call]] = {}
        assignments = list(_assignments(tree))
        # A variable may get its object from one that is assigned further down: repeat until no set grows.
        size = -1
        while size != (size := sum(map(len, self._variables.values()))):
            for target, value in assignments:
                # `inputs["train"] = ...` changes `inputs`.
                name = ast.unparse(target).lstrip("*").partition("[")[0]
                self._variables.setdefault(name, set()).update(self.held(value))
        # A call that stays -> the name and the line of AWS's object that it meets.
        self.kept = {call: (name, call.lineno) for call, name in self._foreign.items()}
        groups = [group for call, name in names for group in self._groups(call, name)]
        size = -1
        while size != (size := len(self.kept)):
            for group in groups:
                reason = next((self.kept[call] for call in group if call in self.kept), None)
                self.kept |= {call: self.kept.get(call, reason) for call in group if reason}
        self.kept = {call: reason for call, reason in self.kept.items() if call in self.ours}

    def held(self, node: ast.AST) -> set[ast.Call]:
        """Return the calls whose objects an expression may have as its value, or inside of it."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            # A pipeline's `step.properties.X` stands for a later value of that step.
            owner = ast.unparse(node).partition(".properties.")[0] if isinstance(node, ast.Attribute) else node.id
            return self._variables.get(owner, set())
        if isinstance(node, ast.Call):
            if node in self._objects:
                return {node}
            if isinstance(node.func, ast.Attribute):
                return self.held(node.func.value) if node.func.attr in _HANDS_ON else set()
        if isinstance(node, (ast.JoinedStr, ast.Compare, ast.Lambda)):
            return set()
        return set().union(*map(self.held, ast.iter_child_nodes(node)))

    def _groups(self, call: ast.Call, name: str | None) -> Iterator[set[ast.Call]]:
        """Yield the objects that meet in a call, of which either all or none can be Herringbone's."""
        # Options of features that are not here go; see `script`.
        keywords = [keyword.value for keyword in call.keywords if not (call in self.ours and keyword.arg in LEFT_OUT)]
        arguments = set().union(*map(self.held, (*call.args, *keywords)))
        if call in self.ours or name is not None:
            yield {call, *arguments}
        elif isinstance(call.func, ast.Attribute):
            owners = self.held(call.func.value)
            if call.func.attr in _TAKES_OBJECTS or owners & self._foreign.keys():
                yield owners | arguments


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what gets a value, and the value: of `=`, `:=`, `for`, `with`, and of methods such as `append`."""
    for node in ast.walk(tree):
        target = getattr(node, "target", None) or getattr(node, "optional_vars", None)
        targets = [target] if target else getattr(node, "targets", [])
        values = [getattr(node, name, None) for name in ("value", "iter", "context_expr")]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS:
            targets, values = [node.func.value], [*node.args, *(keyword.value for keyword in node.keywords)]
        for target in targets:
            yield from ((each, value) for each in getattr(target, "elts", [target]) for value in values if value)
