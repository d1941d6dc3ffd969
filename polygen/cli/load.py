"""From the words of a command line to a `Fused` and its kernel.

1. ``FILE.py:FUNCTION`` runs the file as a module and takes the function, decorated or plain.
2. Anything else is an expression over the names of the operands; it is parsed, never evaluated.
3. The kernel's name is the function's, or the operations of the expression, outermost first.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import inspect
import keyword
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from polygen import knobs
from polygen.api import Fused, fuse
from polygen.errors import PolygenError, SignatureError, ToolchainMissing, TraceError, told
from polygen.frontend.given import checked_name
from polygen.frontend.parse import parse_expression
from polygen.frontend.signature import parse_signature
from polygen.kernel_sequence import AnyKernel
from polygen.runtime.environment import current_arch

_FILE = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")
_MODULE = "polygen_user_file"
_LONGEST_NAME = 40
_OPERATIONS: dict[type[ast.AST], str] = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.USub: "neg",
}


def kernel(options: argparse.Namespace) -> AnyKernel:
    """The kernel that the options describe, or several in order.

    Raises:
        PolygenError: the program, an operand, the target or the schedule is refused.
    """
    chosen = fused(options.program, options.signature, options.name)
    if options.arch is None and knobs.current().arch is None and current_arch() is None:
        raise ToolchainMissing(
            "there is no GPU to generate code for",
            where="--arch",
            nearest="Name a target, as in --arch sm_80; `polygen targets` lists them",
        )
    out = options.out_dtype
    return chosen.compile(
        *options.signature,
        arch=options.arch,
        sizes=dict(options.size),
        static=tuple(options.static),
        out_dtype=out[0] if out and len(out) == 1 else out,
        acc_dtype=options.acc_dtype,
        schedule=options.schedule,
        command=options.command,
        invariant=tuple(options.invariant),
        single=options.single,
    )


def fused(program: str, signature: list[str], name: str | None) -> Fused:
    """The program of a command line.

    Args:
        program: an expression, or ``FILE.py:FUNCTION``.
        signature: operand descriptions; an expression uses their names.
        name: of the kernel; None: derived.

    Raises:
        PolygenError: no such file or function, or the file fails.
        TraceError: `name` is not a name.
        SignatureError: an operand has no name, or two have one.
        ExpressionError: the expression cannot be read.
    """
    if name is not None:
        checked_name(name, "--name")
    found = _FILE.fullmatch(program.strip())
    if found:
        function = from_file(Path(found["path"]), found["name"])
        if isinstance(function, Fused) and name is None:
            return function
        made: Fused = fuse(function, name=name)
        return made
    if program.strip().endswith(".py"):
        raise PolygenError(
            "a file without a function", where=program, nearest=f"Write {program}:FUNCTION"
        )
    names = operand_names(signature)
    expression = parse_expression(program, names)
    return Fused(expression, name or derived_name(program), program.strip(), allow_tf32=False)


def operand_names(signature: list[str]) -> tuple[str, ...]:
    """The names that operand descriptions give, in order.

    Raises:
        SignatureError: one has no name, or two have the same.
    """
    names = [parse_signature(text).name for text in signature]
    for position, (name, text) in enumerate(zip(names, signature, strict=True)):
        if not name:
            raise SignatureError(
                "an operand of an expression needs a name", where=repr(text), nearest=f"x:{text}"
            )
        if name in names[:position]:
            raise SignatureError(f"two operands are called {name!r}", where=repr(text))
    return tuple(names)


def derived_name(expression: str) -> str:
    """A kernel name from the operations of a well-formed expression, outermost first."""
    words: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            called = node.func
            words.append(called.id if isinstance(called, ast.Name) else getattr(called, "attr", ""))
        elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
            words.append(_OPERATIONS.get(type(node.op), ""))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(expression.strip(), mode="eval"))
    name = "_".join(word for word in words if word)[:_LONGEST_NAME].rstrip("_")
    return name if name and not keyword.iskeyword(name) else "fused"


def from_file(path: Path, name: str) -> Any:
    """A function of a Python file.

    Args:
        path: the file; it is run, with its folder importable, as ``python FILE`` would.
        name: a function in it.

    Raises:
        PolygenError: there is no such file or function, or running the file fails.
    """
    module = _run(path)
    found = getattr(module, name, None)
    if callable(found):
        try:
            inspect.signature(found)
        except (TypeError, ValueError):
            raise PolygenError(
                f"{name} does not tell what arguments it takes",
                where=str(path),
                nearest="Write a function around it, as in def f(x, w): …",
            ) from None
        return found
    functions = [n for n, value in vars(module).items() if _is_own_function(value)]
    near = difflib.get_close_matches(name, functions, n=1) or functions
    raise PolygenError(
        f"{name} is not a function" if found is not None else f"no function is called {name!r}",
        where=str(path),
        nearest=f"Functions there: {', '.join(near)}" if near else "It defines none",
    )


def _is_own_function(value: object) -> bool:
    return isinstance(value, Fused) or (
        callable(value) and getattr(value, "__module__", "") == _MODULE
    )


def _run(path: Path) -> ModuleType:
    try:
        found = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if not found:
        raise PolygenError("no such file", where=str(path))
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    folder, paths = str(path.resolve().parent), tuple(sys.path)
    sys.path.insert(0, folder)
    sys.modules[_MODULE] = module
    streams = sys.stdout, sys.stderr
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() too: it would end polygen without a word
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same(f, path)]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        raise TraceError(
            f"running the file fails: {told(error)}",
            where=f"{path}, line {line}" if line else str(path),
        ) from error
    finally:
        sys.stdout, sys.stderr = streams  # what polygen says is not the file's to lose
        with contextlib.suppress(ValueError):  # the file has removed it
            sys.path.remove(folder)
        sys.path += [one for one in paths if one not in sys.path]  # nor where its modules are
    return module


def _same(frame: traceback.FrameSummary, path: Path) -> bool:
    return Path(frame.filename).resolve() == path.resolve()
