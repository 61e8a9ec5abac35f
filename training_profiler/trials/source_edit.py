"""Edits a call in source code by its concrete syntax tree, so that everything else keeps its formatting."""

from collections.abc import Mapping, Sequence
from typing import Final

import libcst as cst
from libcst import matchers
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from training_profiler.trials.treatment import CannotEditError, Edit

# Which positional arguments are edited, by function.
POSITIONS: Final[dict[str, dict[str, int]]] = {
    "DataLoader": {"num_workers": 5, "pin_memory": 7},
    "DistributedDataParallel": {"bucket_cap_mb": 7, "gradient_as_bucket_view": 10, "static_graph": 11},
    "zero_grad": {"set_to_none": 0},
}
CONSTRUCTOR: Final = "__init__"


def apply(source: str, edit: Edit) -> str:
    """Return ``source`` after an edit.

    Raises:
        CannotEditError: no edit of this code is sure to have the effect.
    """
    try:
        tree = MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise CannotEditError("this version of Python cannot read the file") from error
    call = _call_at(tree, edit, source)
    module = tree.module
    if edit.arguments:
        changed = _with_arguments(call, edit)
        if not edit.statement:
            return module.with_changes(body=_replaced(module, call, changed).body).code
    if edit.statement:
        statement = _statement_of(tree, call)
        own = [_parsed(module, line) for line in _lines(module, call, edit)]
        with_call = statement if not edit.arguments else statement.deep_replace(call, changed)
        module = _replaced(module, statement, cst.FlattenSentinel([*own, with_call]))
    return module.code


def _replaced(
    module: cst.Module, node: cst.CSTNode, by: "cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]"
) -> cst.Module:
    class Replace(cst.CSTTransformer):
        def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
            return by if original_node is node else updated_node

    changed = module.visit(Replace())
    assert isinstance(changed, cst.Module)
    return changed


def _call_at(tree: MetadataWrapper, edit: Edit, source: str) -> cst.Call:
    site, positions = edit.call.site, tree.resolve(PositionProvider)
    lines = source.split("\n")
    if not 0 < site.line <= len(lines):
        raise CannotEditError("the file has changed since the run")
    column = len(lines[site.line - 1].encode()[: max(0, site.column)].decode("utf-8", "ignore"))
    calls = [
        node
        for node, place in positions.items()
        if isinstance(node, cst.Call)
        and place.start.line == site.line
        and (site.column < 0 or place.start.column == column)
    ]
    names = _names(tree.module, edit.call.function.rpartition(".")[2])
    known = [call for call in calls if _name(call.func) in names or _is_super(call.func)]
    if len(known) != 1:
        raise CannotEditError("the call is not written there by its name" if calls else "the call is not in that line")
    return known[0]


def _name(function: cst.BaseExpression) -> str:
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def _is_super(function: cst.BaseExpression) -> bool:
    pattern = matchers.Attribute(value=matchers.Call(func=matchers.Name("super")), attr=matchers.Name(CONSTRUCTOR))
    return matchers.matches(function, pattern)


def _names(module: cst.Module, function: str) -> set[str]:
    """Return the names that stand for a function or class in a file: its own, import aliases, bindings, subclasses."""
    found = {function}

    class Bindings(cst.CSTVisitor):
        def visit_ImportAlias(self, node: cst.ImportAlias) -> None:  # noqa: N802
            if node.asname is not None and node.evaluated_name.rpartition(".")[2] == function:
                found.add(node.evaluated_alias or "")

        def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
            value = node.value
            if isinstance(value, cst.Call) and _name(value.func) == "partial" and value.args:
                value = value.args[0].value
            if _name(value) == function:
                found.update(_name(target.target) for target in node.targets)

        def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
            has_own = matchers.findall(node.body, matchers.FunctionDef(name=matchers.Name(CONSTRUCTOR)))
            if not has_own and any(_name(base.value) == function for base in node.bases):
                found.add(node.name.value)

    module.visit(Bindings())
    return found - {""}


def _with_arguments(call: cst.Call, edit: Edit) -> cst.Call:
    for name, value in edit.arguments:
        at = _index(call.args, name, POSITIONS.get(edit.call.function, {}))
        expression = cst.parse_expression(value)
        if at is not None:
            args = [*call.args]
            args[at] = args[at].with_changes(value=expression)
            call = call.with_changes(args=args)
            continue
        for arg in call.args:
            if arg.star:
                raise CannotEditError(f"arguments come from {arg.star}{cst.Module([]).code_for_node(arg.value)}")
        if name.isdigit():
            raise CannotEditError("the argument is not written there")
        call = _with_another(call, cst.Arg(expression, cst.Name(name), cst.AssignEqual(_NONE, _NONE)))
    return call


_NONE: Final = cst.SimpleWhitespace("")


def _index(args: Sequence[cst.Arg], name: str, positions: Mapping[str, int]) -> int | None:
    """Return which of the arguments is ``name``; None if it is not written out."""
    for at, arg in enumerate(args):
        if arg.star == "*":
            return next((n for n, each in enumerate(args) if each.keyword and each.keyword.value == name), None)
        is_positional = arg.keyword is None and not arg.star
        if (arg.keyword is not None and arg.keyword.value == name) or (
            is_positional and at == positions.get(name, int(name) if name.isdigit() else None)
        ):
            return at
    return None


def _with_another(call: cst.Call, new: cst.Arg) -> cst.Call:
    """Return the call with one more argument, on a line of its own where the others are."""
    if not call.args:
        return call.with_changes(args=[new])
    *others, last = call.args
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        raise CannotEditError("its only argument is a generator without parentheses")
    before = others[-1].comma.whitespace_after if others and isinstance(others[-1].comma, cst.Comma) else None
    between = before if before is not None else call.whitespace_before_args
    if not isinstance(between, cst.ParenthesizedWhitespace):
        between = cst.SimpleWhitespace(" ")
    else:  # a comment belongs to the argument before it
        between = between.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    comma = last.comma
    if isinstance(comma, cst.Comma):
        after = comma.whitespace_after
        if isinstance(after, cst.ParenthesizedWhitespace):
            new = new.with_changes(comma=comma.with_changes(whitespace_after=_without_comment(after)))
            if isinstance(between, cst.ParenthesizedWhitespace):
                between = after.with_changes(indent=between.indent, last_line=between.last_line)
    else:
        after = last.whitespace_after_arg
        new = new.with_changes(whitespace_after_arg=_without_comment(after))
        if isinstance(between, cst.ParenthesizedWhitespace) and isinstance(after, cst.ParenthesizedWhitespace):
            between = after.with_changes(indent=between.indent, last_line=between.last_line)
    last = last.with_changes(comma=cst.Comma(whitespace_after=between), whitespace_after_arg=_NONE)
    return call.with_changes(args=[*others, last, new])


def _without_comment(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])


def _statement_of(tree: MetadataWrapper, call: cst.Call) -> cst.SimpleStatementLine:
    """Return the statement with the call, if a statement before it runs right before it."""
    parents, node = tree.resolve(ParentNodeProvider), call
    while not isinstance(node, cst.SimpleStatementLine):
        if isinstance(node, (cst.Lambda, cst.SimpleStatementSuite, cst.BaseCompoundStatement, cst.Module)):
            raise CannotEditError("there is no place for a statement right before the call")
        node = parents[node]  # type: ignore[assignment]
    return node


def _lines(module: cst.Module, call: cst.Call, edit: Edit) -> list[str]:
    """Return the statements to insert, with the imports that they need."""
    lines = edit.statement.split("\n")
    if "{model}" in edit.statement:
        model = _model(call)
        lines = [line.replace("{model}", model) for line in lines]
    return [f"import {name}" for name in edit.module.split() if not _is_imported(module, name)] + lines


def _model(call: cst.Call) -> str:
    parameters = matchers.Call(func=matchers.Attribute(attr=matchers.Name("parameters")))
    found = set()
    for each in matchers.findall(call.args[0].value, parameters) if call.args else ():
        assert isinstance(each, cst.Call)
        assert isinstance(each.func, cst.Attribute)
        found.add(cst.Module([]).code_for_node(each.func.value))
    if len(found) != 1 or not all(part.isidentifier() for part in next(iter(found)).split(".")):
        raise CannotEditError("the parameters do not come from one model")
    return found.pop()


def _is_imported(module: cst.Module, name: str) -> bool:
    imports = matchers.findall(
        cst.Module([each for each in module.body if isinstance(each, cst.SimpleStatementLine)]), matchers.Import()
    )
    aliases = [alias for each in imports if isinstance(each, cst.Import) for alias in each.names]
    return any(alias.asname is None and alias.evaluated_name.partition(".")[0] == name for alias in aliases)


def _parsed(module: cst.Module, line: str) -> cst.BaseCompoundStatement | cst.SimpleStatementLine:
    return cst.parse_statement(line, config=module.config_for_parsing)
