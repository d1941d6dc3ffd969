"""A product that goes on with the sums of another, where the program adds the two.

    v0[i,j] = sum over k of x[i,k] * w[j,k]
    v1[i,e] = sum over k of x[i,k] * a[e,k]          v2 = cast(v1)
    v3[i,j] = sum over e of v2[i,e] * b[j,e]         v0 + s * v3
                                            ->
    v0[i,j] = sum over k of x[i,k] * w[j,k]  +  sum over e of v2'[i,e] * b[j,e]
                                                     v2' = cast(s * v1)

1. Both sums are f32, and so is what they are added in: the terms of one sum are summed behind those
   of the other, in one accumulator. Reals are added in another order; no rounding is left out that
   the program asks for. Where it rounds one of the sums, or anything that has it as a term, before
   they meet, nothing is rewritten.
2. A number that multiplies the second sum multiplies what it is made of: that is rounded once, as
   the program says, with the number in it. For powers of two these are the same bits.
3. What is left is a program of one product, and two more that say what its sums have besides
   (`polygen.frontend.program.Rest`). All passes see the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F16, F32, DType
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Dim,
    Pointwise,
    Program,
    Rest,
    Statement,
    Tensor,
)
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_PRODUCTS = 3
_SIGNED = ("add", "sub")


@dataclass(frozen=True, slots=True)
class _Way:
    """The statements from a sum up to where it meets another.

    Attributes:
        steps: in order, each of which reads the one before alone.
        factors: what multiplies (or divides) the sum on its way.
        negative: whether it is subtracted in the end.
    """

    steps: tuple[Pointwise, ...]
    factors: tuple[tuple[str, Argument], ...]
    negative: bool


def with_rest(program: Program) -> Program:
    """The program of one product whose sums have the terms of another; else the program itself.

    Raises:
        UnsupportedProgram: three products that are nearly so; with what stands in the way.
    """
    if len(program.contractions) != _PRODUCTS or program.rest is not None:
        return program
    found = _roles(program)
    return program if found is None else _Rewriting(program, *found).program_of_one()


def _roles(program: Program) -> tuple[Contraction, Contraction, Contraction, Access] | None:
    """(product, middle, last, what `last` reads of `middle`); None: no product is by itself."""
    values = Values(program.statements)
    read = {}
    for last in program.contractions:
        for access in last.reads:
            behind = [
                one
                for one in program.contractions
                if one.write.name in values.behind(access.name) and one is not last
            ]
            if behind:
                read[last.name] = (last, access, behind)
    if len(read) != 1:
        return None
    ((last, access, behind),) = read.values()
    if len(behind) != 1:
        return None
    (middle,) = behind
    (main,) = (one for one in program.contractions if one not in (middle, last))
    return main, middle, last, access


class _Rewriting:
    """One product, what makes the left operand of the last, and the last."""

    def __init__(
        self,
        program: Program,
        main: Contraction,
        middle: Contraction,
        last: Contraction,
        operand: Access,
    ) -> None:
        self.program, self.main, self.middle = program, main, middle
        self.last, self.operand = last, operand
        self.values = Values(program.statements)
        self.fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self.readers: dict[str, list[Statement]] = {}
        for statement in program.statements:
            for access in dict.fromkeys(statement.reads):
                self.readers.setdefault(access.name, []).append(statement)

    def program_of_one(self) -> Program:
        """The product with the rest of its sums."""
        self._require_operands()
        meeting = self._meeting()
        self._way(self.main, meeting, own=True)
        way = self._way(self.last, meeting, own=False)
        statements = self._without(way)
        kept = needed(statements, [tensor.name for tensor in self.program.outputs])
        if self.main not in kept or {self.middle.write.name} & {s.write.name for s in kept}:
            raise self._refusal(
                f"{self.middle.write.name} is read besides",
                f"what {self.middle.name} sums stays in the registers that {self.last.name} reads",
                f"Return what is made of {self.middle.write.name} from a function of its own",
            )
        return replace(self.program, statements=tuple(kept), rest=self._rest(way))

    def _refusal(self, what: str, why: str, nearest: str = "") -> UnsupportedProgram:
        instead = (
            f"Make two functions: return what is made of {self.middle.write.name} from the first; "
            "the second multiplies it, and adds other products in the same kernel"
        )
        return UnsupportedProgram(
            what, where=self.program.name, why=why, nearest=nearest or instead
        )

    # --- what is asked of the products ----------------------------------------------------------
    def _require_operands(self) -> None:
        program, tensors = self.program, self.program.tensors
        if program.ends or program.folds or program.gathered:
            raise self._refusal(
                f"{_PRODUCTS} products, of which one reads another's sums, beside folds or groups",
                "their sums are of whole rows of arguments, and nothing is folded of them",
            )
        for product in program.contractions:
            for access in product.reads:
                if access.name not in tensors and access != self.operand:
                    raise self._refusal(
                        f"{product.name} multiplies {access.name}, which is computed",
                        f"{_PRODUCTS} products share a kernel where their operands are arguments, "
                        f"but for what leads from {self.middle.name} to {self.last.name}",
                    )
            if product.dtype != F32:
                raise self._refusal(
                    f"{product.name} sums in {product.dtype}",
                    "products that share sums sum in f32",
                    "Leave acc_dtype out" if product.dtype == F16 else "",
                )
        ours = [access.name for access in self.middle.reads]
        if not set(ours) & {access.name for access in self.main.reads}:
            raise self._refusal(
                f"{self.main.name} and {self.middle.name} multiply different arrays: "
                f"{self.main}; {self.middle}",
                "both are made of the same tiles of rows, as in x @ w.T + (x @ a.T) @ b.T",
            )

    # --- where the sums meet --------------------------------------------------------------------
    def _meeting(self) -> Pointwise:
        """The first statement that both sums are behind."""
        sums = (self.main.write.name, self.last.write.name)
        for statement in self.program.pointwise:
            behind = self.values.behind(statement.write.name)
            if all(name in behind for name in sums):
                if statement.function in _SIGNED:
                    return statement
                raise self._refusal(
                    f"{statement.name} takes {statement.function} of what comes of {sums[0]} and "
                    f"of {sums[1]}",
                    f"{self.last.name} goes on with the sums of {self.main.name} where the program "
                    "adds the two",
                )
        raise self._refusal(
            f"{sums[0]} and {sums[1]} do not meet",
            f"{self.last.name} goes on with the sums of {self.main.name} where the program adds "
            "the two",
        )

    def _way(self, product: Contraction, meeting: Pointwise, *, own: bool) -> _Way:
        """From a product's sums to where they meet the other's.

        Args:
            product: whose sums.
            meeting: the statement.
            own: whether the sums stay where they are: nothing but terms may be added to them.
        """
        steps: list[Pointwise] = []
        factors: list[tuple[str, Argument]] = []
        negative, value = False, product.write
        while not steps or steps[-1] is not meeting:
            step = self._only_reader(value)
            if value not in step.args:
                raise self._refusal(
                    f"{step.name}: {step}",
                    f"the sums of {self.last.name} go on with those of {self.main.name}, row by "
                    f"row and column by column, and {step.name} transposes {value.name}",
                    "Leave the transposition out, and transpose what the function returns",
                )
            at = step.args.index(value)
            turned = step.function == "neg" or (step.function == "sub" and at == 1)
            multiplied = step.function == "mul" or (step.function == "div" and at == 0)
            if step.function == "cast" and step.dtype != F32:
                raise self._refusal(
                    f"{value.name} is rounded to {step.dtype} before it is added",
                    f"one sum has the terms of {self.main.name} and of {self.last.name}, in f32",
                    f"Leave .astype out: what is added is {self.main.write.name} + "
                    f"{self.last.write.name}",
                )
            if (multiplied or turned) and own:
                raise self._refusal(
                    f"{step.name}: {step}",
                    f"the sums of {self.main.name} go on with other terms, each worth what it is",
                    f"Multiply what {self.main.write.name} is added to instead, or pass "
                    f"{self.main.reads[1].name} multiplied",
                )
            if multiplied:
                other = step.args[1 - at]
                if not self._is_number(other):
                    raise self._no_number(step, other)
                factors.append((step.function, other))
            elif not turned and step.function not in (*_SIGNED, "cast"):
                raise self._refusal(
                    f"{step.name} takes {step.function} of {value.name}",
                    f"{self.last.name} goes on with the sums of {self.main.name}: what leads from "
                    "them to where they are added are sums and factors",
                )
            negative ^= turned
            steps.append(step)
            value = step.write
        return _Way(tuple(steps), tuple(factors), negative)

    def _only_reader(self, value: Access) -> Pointwise:
        readers = self.readers.get(value.name, [])
        (first, *others) = readers
        if others or not isinstance(first, Pointwise) or value.name in self.program.tensors:
            raise self._refusal(
                f"{value.name} is read by {', '.join(one.name for one in readers)}",
                "sums that go on with other terms are not known without them",
            )
        return first

    def _is_number(self, arg: Argument) -> bool:
        """Whether an argument is the same for all elements: a constant, or a number passed."""
        if isinstance(arg, Access):
            tensor = self.program.tensors.get(arg.name)
            return tensor is not None and not tensor.dims
        return isinstance(arg, Constant)

    def _no_number(self, step: Pointwise, other: Argument) -> UnsupportedProgram:
        return self._refusal(
            f"{step.name}: {step}",
            f"{other} differs from element to element, and {self.last.name} goes on with sums "
            "that do not",
            "Multiply by a number, or multiply the operand by it before, and pass that",
        )

    # --- what becomes of the statements -----------------------------------------------------------
    def _without(self, way: _Way) -> list[Statement]:
        """The statements without the terms of the last product, whose sum now is the other's."""
        (first, at) = next(
            (step, position) for position, step in enumerate(way.steps) if step.function in _SIGNED
        )
        inside = way.steps[at - 1].write if at else self.last.write
        left = inside == first.args[0]
        other = first.args[1 if left else 0]
        instead = replace(first, function="cast", args=(other,), dtype=F32)
        if left and first.function == "sub":  # what is left is what it is taken from
            instead = replace(first, function="neg", args=(other,), dtype=F32)
        if not isinstance(other, Access) or instead.function != "cast":
            return [instead if one is first else one for one in self.program.statements]
        if other.name in self.values.writers and other.index == first.write.index:
            return self._reading(first, other)
        return [instead if one is first else one for one in self.program.statements]

    def _reading(self, gone: Pointwise, other: Access) -> list[Statement]:
        """The statements where another value is read in the place of one that is no more."""

        def argument(arg: Argument) -> Argument:
            return other if isinstance(arg, Access) and arg == gone.write else arg

        found: list[Statement] = []
        for one in self.program.statements:
            if one is gone:
                if one.write.name in self.program.tensors:
                    found.append(replace(one, function="cast", args=(other,)))
            elif isinstance(one, Pointwise):
                found.append(replace(one, args=tuple(map(argument, one.args))))
            else:
                found.append(one)
        return found

    def _rest(self, way: _Way) -> Rest:
        program, operand = self.program, self.operand
        values = self.values.behind(operand.name)
        statements = [one for one in program.statements if one.write.name in values]
        sizes = dict(statements[-1].domain)
        rows = tuple(sizes[it] for it in statements[-1].write.iterators)
        kind = statements[-1].dtype
        made = self._scaled(statements, way)
        middle = _array(operand.name, rows, kind)
        last = dict(self.last.domain)
        whole = tuple(last[it] for it in self.last.write.iterators)
        terms = self.fresh("w")
        like = tuple((it, last[it]) for it in self.last.write.iterators)
        out = Pointwise(
            self.fresh("R"), like, Access(terms, self.last.write.iterators), "cast",
            (self.last.write,), F32,
        )  # fmt: skip
        return Rest(
            self._part(made, (), (middle,)),
            self._part([self.last, out], (middle,), (_array(terms, whole, F32),)),
        )

    def _scaled(self, statements: list[Statement], way: _Way) -> list[Statement]:
        """What makes the operand, times the factors of its product's sums, before it is rounded."""
        *before, rounded = statements
        if not isinstance(rounded, Pointwise) or rounded.function != "cast":
            raise self._refusal(
                f"{self.operand.name} is multiplied as it is summed, in f32",
                "what one product makes and the next one multiplies is rounded to f16 or bf16, in "
                "registers",
                "Pass operands of f16 or bf16",
            )
        (value,) = rounded.args
        factors = [*way.factors, *([("mul", Constant(-1.0))] if way.negative else [])]
        scaled: list[Statement] = []
        for function, factor in factors:
            step = self.fresh.pointwise(rounded, function, (value, factor))
            scaled.append(step)
            value = step.write
        return [*before, *scaled, replace(rounded, args=(value,))]

    def _part(
        self, statements: list[Statement], made: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> Program:
        read = {access.name for one in statements for access in one.reads}
        inputs = tuple(tensor for tensor in self.program.inputs if tensor.name in read)
        return Program(
            self.program.name, self.program.source, (*inputs, *made), outputs, tuple(statements)
        )


def _array(name: str, dims: tuple[Dim, ...], dtype: DType) -> Tensor:
    """A value as an array that nobody stores."""
    return Tensor(name, dtype, dims, tuple(range(len(dims))))
