"""Find the names that stay with AWS's SDK: its objects take none of Herringbone's, and the reverse.

    estimator = PyTorch(...)                        # would be Herringbone's
    step = TrainingStep(estimator=estimator)        # is AWS's, so the estimator stays AWS's, too

An object is the name of its class where the script makes it. Variables are known by their names alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product

from herringbone.convert.names import COUNTERPARTS, Bindings, counterpart, is_aws, is_object
from herringbone.plan.options.names import LEFT_OUT

# Methods of Herringbone's classes that take other objects. Those that it lacks (`deploy`) are reported by themselves.
_TAKES_OBJECTS = ("fit", "create", "transfer_learning_tuner")
# Methods whose result has their object inside; in a pipeline, `fit` returns the arguments of a step.
_HANDS_ON = ("fit", "items", "values", "get", "copy")
# Methods that put an object into another one.
_GROWS = ("append", "extend", "insert", "update", "setdefault")


class Chains:
    """The objects that a script makes, the variables that hold them, and the calls in which they meet."""

    def __init__(self, tree: ast.AST, bindings: Bindings) -> None:
        self._full_name = bindings.full_name
        self._variables: dict[str, set[ast.AST]] = {}
        pairs, size = list(assignments(tree)), -1
        # A variable may get its object from one that is assigned further down: repeat until no set grows.
        while size != (size := sum(map(len, self._variables.values()))):
            for name, value in pairs:
                self._variables.setdefault(name, set()).update(self.held(value))
        # A name that stays -> the line and the name of AWS's object that it meets.
        self.kept: dict[ast.AST, tuple[int, str]] = {}
        groups, size = [self._meeting(node) for node in ast.walk(tree) if isinstance(node, ast.Call)], -1
        while size != (size := len(self.kept)):
            for group in groups:
                reasons = [reason for node in group if (reason := self.kept.get(node) or self._foreign(node))]
                if reasons:
                    self.kept |= {node: self.kept.get(node, min(reasons)) for node in group if not self._foreign(node)}

    def classes(self, node: ast.expr) -> set[str]:
        """Return the classes of Herringbone's that an expression may be, once the script is converted."""
        names = {self._full_name(each) or "" for each in self.held(node) if each not in self.kept}
        return {COUNTERPARTS[name] for name in names & COUNTERPARTS.keys()}

    def held(self, node: ast.AST) -> set[ast.AST]:
        """Return the objects that an expression may have as its value, or inside of it."""
        name = self._full_name(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            if name in COUNTERPARTS or (name is not None and is_aws(name) and not counterpart(name)):
                return {node} if name in COUNTERPARTS or is_object(name) else set()
            if isinstance(node, ast.Attribute) and counterpart(name):
                return self.held(node.value)
            # A pipeline's `step.properties.X` stands for a later value of that step.
            return self._variables.get(ast.unparse(node).partition(".properties.")[0], set())
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _HANDS_ON:
                return self.held(node.func.value)
            # What a class or a function of the script makes, else what it may pass on.
            if isinstance(node.func, ast.Attribute) or self.held(node.func):
                return self.held(node.func)
        if isinstance(node, (ast.JoinedStr, ast.Compare)):
            return set()
        return set().union(*map(self.held, ast.iter_child_nodes(node)))

    def _foreign(self, node: ast.AST) -> tuple[int, str] | None:
        name = self._full_name(node)
        return None if name is None or counterpart(name) else (getattr(node, "lineno", 0), name)

    def _meeting(self, call: ast.Call) -> set[ast.AST]:
        """Return the objects that meet in a call: either all or none of them can be Herringbone's."""
        made, name = self.held(call.func), self._full_name(call.func)
        # Options of features that are not here go; see `arguments`.
        keywords = [keyword.value for keyword in call.keywords if not (made and keyword.arg in LEFT_OUT)]
        arguments = set().union(*map(self.held, (*call.args, *keywords)))
        if is_aws(name) or made:
            return arguments | made | (set() if counterpart(name) or not is_aws(name) else {call.func})
        if not isinstance(call.func, ast.Attribute):
            return set()
        owners = self.held(call.func.value)
        takes = call.func.attr in _TAKES_OBJECTS or any(map(self._foreign, owners))
        return owners | arguments if takes else set()


def assignments(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield names and what they get: by `=`, `:=`, `for`, `with`, `append`, as a class, a result or a parameter."""
    nodes = list(ast.walk(tree))
    functions = {
        node.name: [each.arg for each in node.args.args] for node in nodes if isinstance(node, ast.FunctionDef)
    }
    for node in nodes:
        target = getattr(node, "target", None) or getattr(node, "optional_vars", None)
        targets = [target] if target else getattr(node, "targets", [])
        values = [getattr(node, name, None) for name in ("value", "iter", "context_expr")]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS:
            targets, values = [node.func.value], [*node.args, *(keyword.value for keyword in node.keywords)]
        elements = [each for target in targets for each in getattr(target, "elts", [target])]
        # `inputs["train"] = ...` changes `inputs`.
        names = [ast.unparse(each).lstrip("*").partition("[")[0] for each in elements]
        if isinstance(node, ast.FunctionDef):
            names = [node.name, f"self.{node.name}"]
            values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
        elif isinstance(node, ast.ClassDef):
            names, values = [node.name], [*node.bases]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            yield from zip(functions[node.func.id], node.args, strict=False)
            yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
        yield from ((name, value) for name, value in product(names, values) if value)
