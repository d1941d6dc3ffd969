"""`LoopAst`: the loops isl generates from a schedule tree, as small values without any isl object.

1. isl scans the tree and splits its loops (prologue, steady state, tail).
2. Its nodes become For, If, Mark, Call and Block; its expressions become index expressions.
3. A mark names the loops below it, so that the text reads `t`, `s`, `m`, `n` instead of `c0` ..
   `c3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from polygen import isl, remembered
from polygen.errors import VerifyError

_MOST_TREES = 256  # whose loops are kept: kernels of one schedule have the same ones


@dataclass(frozen=True, slots=True)
class Const:
    """An integer."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Var:
    """A loop iterator or a parameter."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary:
    """`left op right`; "/" and "%" act on non-negative values, "min" and "max" are calls."""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


Expr = Const | Var | Binary

_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "pdiv_q": "/",
    "pdiv_r": "%",
    "zdiv_r": "%",
    "and_": "&&",
    "and_then": "&&",
    "or_": "||",
    "or_else": "||",
    "eq": "==",
    "le": "<=",
    "lt": "<",
    "ge": ">=",
    "gt": ">",
    "min": "min",
    "max": "max",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One statement instance: ``mma((t - 2), s, m, n)``."""

    statement: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class For:
    """``for (iterator = first; condition; iterator += step)``."""

    iterator: str
    first: Expr
    condition: Expr
    step: int
    body: LoopAst
    unroll: bool  # the number of iterations is known


@dataclass(frozen=True, slots=True)
class If:
    """A condition on sizes or iterators."""

    condition: Expr
    then: LoopAst
    otherwise: LoopAst | None


@dataclass(frozen=True, slots=True)
class Marked:
    """A named subtree of the schedule."""

    name: str
    body: LoopAst


@dataclass(frozen=True, slots=True)
class Block:
    """One after the other."""

    children: tuple[LoopAst, ...]


LoopAst = Call | For | If | Marked | Block


def loops(
    tree_text: str,
    names: dict[str, tuple[str, ...]],
    context: str = "[k_tiles] -> { : k_tiles >= 1 }",
) -> LoopAst:
    """Generate the loops of a schedule tree.

    Args:
        tree_text: the tree in isl's YAML.
        names: mark -> names of the loops right below it.
        context: what is known about the parameters, as isl text.
    """
    return _loops(tree_text, tuple(names.items()), context)


@lru_cache(maxsize=_MOST_TREES)
def _loops(text: str, names: tuple[tuple[str, tuple[str, ...]], ...], context: str) -> LoopAst:
    build = isl.AstBuild.from_context(isl.Set(context))
    return _node(build.node_from_schedule(remembered.read_schedule(text)), dict(names), (), {})


def _node(
    node: isl.AstNode,
    names: dict[str, tuple[str, ...]],
    pending: tuple[str, ...],
    env: dict[str, str],
) -> LoopAst:
    kind = isl.kind(node)
    if kind == "user":
        call = node.user_get_expr()
        arguments = [_expression(call.get_op_arg(i), env) for i in range(call.get_op_n_arg())]
        return Call(str(arguments[0]), tuple(arguments[1:]))
    if kind == "mark":
        name = node.mark_get_id().get_name()
        return Marked(name, _node(node.mark_get_node(), names, names.get(name, ()), env))
    if kind == "block":
        children = node.block_get_children()
        count = children.n_ast_node()
        return Block(tuple(_node(children.get_at(i), names, pending, env) for i in range(count)))
    if kind == "if":
        otherwise = _node(node.if_get_else(), names, pending, env) if node.if_has_else() else None
        then = _node(node.if_get_then(), names, pending, env)
        return If(_expression(node.if_get_cond(), env), then, otherwise)
    return _for(node, names, pending, env)


def _for(
    node: isl.AstNode,
    names: dict[str, tuple[str, ...]],
    pending: tuple[str, ...],
    env: dict[str, str],
) -> LoopAst:
    own = str(_expression(node.for_get_iterator(), {}))
    name, rest = (pending[0], pending[1:]) if pending else (own, ())
    inner = {**env, own: name}
    first = _expression(node.for_get_init(), env)
    body = _node(node.for_get_body(), names, rest, inner)
    if node.for_is_degenerate():
        condition: Expr = Binary("<=", Var(name), first)
        return For(name, first, condition, 1, body, True)
    condition = _expression(node.for_get_cond(), inner)
    known = isinstance(first, Const) and isinstance(condition, Binary)
    unroll = known and isinstance(condition.right, Const)  # type: ignore[union-attr]
    step = _expression(node.for_get_inc(), env)
    assert isinstance(step, Const)
    return For(name, first, condition, step.value, body, unroll)


def _expression(expression: isl.AstExpr, env: dict[str, str]) -> Expr:
    kind = isl.kind(expression)
    if kind == "int":
        return Const(int(expression.get_val().to_python()))
    if kind == "id":
        name = str(expression.get_id().get_name())
        return Var(env.get(name, name))
    op = isl.operator(expression)
    arguments = [
        _expression(expression.get_op_arg(i), env) for i in range(expression.get_op_n_arg())
    ]
    if op == "minus":
        return Binary("-", Const(0), arguments[0])
    if op not in _OPERATORS:
        raise VerifyError(
            f"isl printed the operator {op!r}, which the emitter does not know", where="AST"
        )
    result = arguments[0]
    for argument in arguments[1:]:
        result = Binary(_OPERATORS[op], result, argument)
    return result


def text(node: LoopAst, depth: int = 0) -> str:
    """The loops, indented."""
    pad = "  " * depth
    if isinstance(node, Call):
        return f"{pad}{node.statement}({', '.join(map(str, node.arguments))})"
    if isinstance(node, Block):
        return "\n".join(text(child, depth) for child in node.children)
    if isinstance(node, Marked):
        return f"{pad}# {node.name}\n{text(node.body, depth)}"
    if isinstance(node, If):
        lines = f"{pad}if {node.condition}:\n{text(node.then, depth + 1)}"
        if node.otherwise is None:
            return lines
        return f"{lines}\n{pad}else:\n{text(node.otherwise, depth + 1)}"
    unrolled = "  # unrolled" if node.unroll else ""
    head = f"{pad}for {node.iterator} = {node.first}; {node.condition}; += {node.step}:{unrolled}"
    return f"{head}\n{text(node.body, depth + 1)}"


def renamed(node: LoopAst, names: Mapping[str, str]) -> LoopAst:
    """The same loops with other names for some parameters.

    Args:
        node: the loops.
        names: parameter -> its name.
    """
    if isinstance(node, Call):
        return replace(node, arguments=tuple(_renamed(one, names) for one in node.arguments))
    if isinstance(node, Block):
        return Block(tuple(renamed(child, names) for child in node.children))
    if isinstance(node, If):
        otherwise = None if node.otherwise is None else renamed(node.otherwise, names)
        return If(_renamed(node.condition, names), renamed(node.then, names), otherwise)
    if isinstance(node, Marked):
        return replace(node, body=renamed(node.body, names))
    first, condition = _renamed(node.first, names), _renamed(node.condition, names)
    return replace(node, first=first, condition=condition, body=renamed(node.body, names))


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    if isinstance(expr, Var):
        return Var(names.get(expr.name, expr.name))
    if isinstance(expr, Binary):
        return Binary(expr.op, _renamed(expr.left, names), _renamed(expr.right, names))
    return expr
