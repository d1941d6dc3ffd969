"""Chains of products: the sums of one, after pointwise work and folds, are an operand of the next.

    v0[i,j] += q[i,k] * k[j,k]     v8[i,e] += f(v0[i,j], m[i]) * v[j,e]     m, l: folds over j

One loop over the keys j runs everything, if nothing in it needs what only the end of the loop
knows. Dependences alone say no: the maximum of a row is known behind its last key, and all terms
read it. The rewrite makes every fold a *scan* over j, whose state is known at each key:

    m[i,j] = max(m[i,j-1], x[i,j])
    l[i,j] = l[i,j-1] * c(m[i,j-1], m[i,j]) + f(x[i,j], m[i,j])      c(m, m') = f(x, m') / f(x, m)

1. Log-sum-exp is written as a maximum and a sum; equal statements are one (`simplify`).
2. What does not vary along j leaves the second product (`factors`).
3. A fold whose result terms over j read, the *reference*, becomes a scan. Terms under another
   reference are worth a factor more that does not depend on them (`separation`): so sums of them
   become scans with a rescale. Else the program is refused, with numbers that show why.
4. A scan takes blocks of keys as it takes keys: folds are monoids, and c(m, m'') = c(m, m') c(m',
   m''). So tiles fold their own keys and take one step.

What is left is two programs of one product each, over the rows and the keys and over the rows and
the columns, that all other passes know; values of the one are arrays to the other that nobody
stores. Folds of what the second product gives are the second program's own: they are split there
as those of any product (`polygen.poly.folds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F16, F32, S32
from polygen.frontend.program import (
    Access,
    Contraction,
    Fold,
    Program,
    Statement,
    Tensor,
)
from polygen.rewrite.bounded_reference import without_bounded_reference
from polygen.rewrite.factors import factors_out
from polygen.rewrite.key_range import KeyRange, key_range
from polygen.rewrite.layers import Layer, layers_in_front, stages
from polygen.rewrite.positive_factors import factors_behind_folds
from polygen.rewrite.separation import Factor, correction, separated
from polygen.rewrite.simplify import (
    Fresh,
    alike_in_rows,
    arguments_as_values,
    each_once,
    log_sums_in_parts,
    sums_as_values,
)  # fmt: skip
from polygen.rewrite.two_programs import TwoPrograms
from polygen.rewrite.values import Values

_REFERENCES = ("max",)  # folds that terms may be made with: nothing of them is -inf, which none is


@dataclass(frozen=True, slots=True)
class State:
    """A fold over the keys as a scan.

    Attributes:
        value: its result.
        monoid: how terms are combined.
        term: what a key contributes: a value of the program of scores.
        rescaled: whether a step multiplies it by the correction first.
    """

    value: str
    monoid: str
    term: str
    rescaled: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """A program of two products as one loop over keys.

    Attributes:
        scores: the first product, and what is made of it at every (row, key). Its outputs are no
            arrays: the terms of states, and the second product's operand. States are inputs.
        values: the second product, and what is made of it and of states. The operand and the states
            are inputs that are no arrays.
        states: of the scan, the reference first.
        reference: the state that terms are made with; "" if there is none.
        correction: the factors of c(m, m').
        weight: the second product's operand.
        rows: outputs of one element a row: these names are matrices in `values`, alike in a row.
        steps: how it was derived, in sentences.
        range: the keys of a row, where a mask says so.
        layers: that make the rows of the first product; none where they are an argument.
        kept: what takes the place of the first sums: the weight, or what it is rounded of.
        returned: results of the program of scores.
    """

    scores: Program
    values: Program
    states: tuple[State, ...]
    reference: str
    correction: tuple[Factor, ...]
    weight: str
    rows: tuple[Tensor, ...]
    steps: tuple[str, ...]
    range: KeyRange | None = None
    layers: tuple[Layer, ...] = ()
    kept: str = ""
    returned: tuple[Tensor, ...] = ()

    def __str__(self) -> str:
        lines = [f"{at}. {step}" for at, step in enumerate(self.steps, 1)]
        each = [line for one in self.layers for line in (str(one), "")]
        return "\n".join([*lines, "", *each, str(self.scores), "", str(self.values)])


def products_in_chain(program: Program) -> tuple[Contraction, Contraction, Access] | None:
    """Two products of which the second reads what is made of the first, and that read.

    Returns:
        None where no product reads what another sums.
    """
    values = Values(program.statements)
    sums = [product.write.name for product in program.contractions]
    for product in program.contractions:
        for access in product.reads:
            behind = [s for s in sums if s in values.behind(access.name)]
            if behind:
                first = values.writers[behind[0]]
                assert isinstance(first, Contraction)
                return first, product, access
    return None


def chain(program: Program) -> Chain | None:
    """The program as one loop over keys; None if its products are no chain.

    Raises:
        UnsupportedProgram: they are one that no loop runs; with the dependence, or what it is not.
    """
    layers, program = layers_in_front(program)
    found = products_in_chain(program)
    if found is None:
        return None
    return replace(_Rewriting(program, *found).chain(), layers=layers)


class _Rewriting(TwoPrograms):
    def __init__(
        self, program: Program, first: Contraction, second: Contraction, operand: Access
    ) -> None:
        self.program, self.first, self.second, self.operand = program, first, second, operand
        self.outputs = [tensor.name for tensor in program.outputs]
        self.fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self.steps: list[str] = []
        self._require_form()
        self.rows = second.write.iterators[:-1]
        sizes = dict(second.domain)
        self.extents = tuple(sizes[it] for it in self.rows)
        (key,) = second.summed
        self.keys = sizes[key]
        self.returned = self.of_first()

    # --- what a chain is ------------------------------------------------------------------------
    def _require_form(self) -> None:
        program, second = self.program, self.second
        if program.ends:
            raise self.refusal(
                "chains of products are not generated yet for rows in groups",
                "a loop over keys has the same keys for all rows of a tile",
                "Make two functions",
            )
        if len(program.contractions) > 2 and not stages(program):
            raise self.refusal(
                f"{len(program.contractions)} products, of which one reads another's sums",
                "one loop runs two products, the second over what the first one gives",
                f"Make two functions: return what is made of {self.first.write.name} from the "
                "first; the second multiplies it, and adds other products in the same kernel",
            )
        for product in program.contractions:
            for access in product.reads:
                if access.name not in program.tensors and access != self.operand:
                    raise self.refusal(
                        f"{product.name} multiplies {access.name}, which is computed",
                        "operands of a chain are arguments, or made of arguments alone, but for "
                        "what leads from the first product to the second",
                        f"Compute {access.name} before, or multiply the result by it",
                    )
        own = second.write.iterators
        summed = second.summed
        row, other = self.operand.iterators, self.other().iterators
        if (
            len(summed) != 1
            or row != (*own[:-1], summed[0])
            or not (own and {own[-1], summed[0]} <= {*other})
        ):
            raise self.refusal(
                f"{second.name}: {second} does not multiply the rows of {self.operand.name}",
                "a chain keeps rows of the first product where they are, in the registers of their "
                "threads",
                "Write it as f(q @ k.mT) @ v",
            )
        for product in self.firsts():
            if len(product.summed) != 1:
                raise self.refusal(
                    f"{product.name}: {product} sums over {len(product.summed)} axes in a chain",
                    "the rows of a chain's first product stay in registers over one axis",
                    "Make two functions, or pass its operands with these axes merged",
                )
        kinds = [one.dtype for one in (*self.firsts(), second)]
        if any(kind != F32 for kind in kinds):
            raise self.refusal(
                f"sums in {' and '.join(map(str, kinds))}",
                "chains sum in f32",
                "Leave acc_dtype out"
                if F16 in kinds
                else "Return the first product from one function, and multiply it in a second",
            )

    # --- the rewrite ----------------------------------------------------------------------------
    def chain(self) -> Chain:
        """All steps."""
        self.late = self.behind_second()
        statements, count = log_sums_in_parts(self.program.statements, self.fresh, self.late)
        if count:
            self.steps.append("logsumexp(x) = m + log(sum of exp(x - m)), for any m: m = max of x")
        statements = each_once(statements, self.outputs)
        rank = len(self.operand.index)
        kept = [*self.outputs, *self.late]
        statements, self.alike = alike_in_rows(statements, kept, rank)
        statements, steps = factors_behind_folds(statements, self.fresh, self.late)
        self.steps += steps
        for product in self.firsts():
            statements = sums_as_values(statements, product, self.operand.name, self.fresh)
        statements = arguments_as_values(statements, self.program.tensors, self.keys, self.fresh)
        self.second = next(
            s for s in statements if isinstance(s, Contraction) and s.name == self.second.name
        )
        self.operand = next(a for a in self.second.reads if a.name not in self.program.tensors)
        self.folds = self.over_keys(statements)
        values = Values(tuple(statements))
        states = [fold.write.name for fold in self.folds]
        statements, second, taken = factors_out(
            statements,
            self.second,
            self.operand,
            lambda arg: values.depends(arg, states) and self.is_row(values, arg),
            self.fresh,
        )
        self.second = second
        for one in taken:
            how = "divided by" if one.function == "div" else "multiplied by"
            self.steps.append(
                f"{one.value.name} is the same for all keys of a row: {second.write.name} is "
                f"{how} it behind the sum"
            )
        self._hold(statements, second)
        self._require_folds()
        kind = self.operand_type()
        bounded = without_bounded_reference(
            self.statements, second, self.operand, kind, self.outputs
        )
        self.masked = self.operand.name
        if bounded is not None:
            self.steps.append(bounded.step)
            self.masked = bounded.term
            self._hold(bounded.statements, second)
        return self._split(self._reference())

    def _hold(self, statements: Sequence[Statement], second: Contraction) -> None:
        """Go on with these statements, as far as what is returned needs them."""
        self.statements = needed(statements, self.outputs)
        self.values = Values(tuple(self.statements))
        self.operand = self.middle(second)
        self.folds = self.over_keys(self.statements)

    def _require_folds(self) -> None:
        for fold in self.folds:
            sizes = dict(fold.domain)
            gone = [sizes[it] for it in fold.folded]
            kept = tuple(sizes[it] for it in fold.write.iterators)
            if (
                gone != [self.keys]
                or kept != self.extents
                or fold.dtype == S32
                or len(fold.args) != 1
            ):
                raise self.refusal(
                    f"{fold.name}: {fold}",
                    f"the loop of a chain folds over its keys, {self.keys}, one value a row",
                    f"Compute {fold.write} in a function before, and pass it as an argument",
                )

    def _reference(self) -> Fold | None:
        """The fold whose result terms of other folds and products read."""
        terms = [(self.second.name, self.operand.name)]
        terms += [(fold.name, str(a.name)) for fold in self.folds for a in fold.reads]
        found: list[tuple[Fold, str]] = []
        for reader, term in terms:
            for fold in self.folds:
                if fold.write.name in self.values.behind(term):
                    found.append((fold, reader))
        references = list(dict.fromkeys(fold.name for fold, _ in found))
        if not references:
            return None
        reference, reader = found[0]
        if len(references) > 1 or reference.function not in _REFERENCES:
            (late, reader) = next(
                ((f, r) for f, r in found if f.function not in _REFERENCES), found[-1]
            )
            raise UnsupportedProgram(
                f"{reader} reads what comes of {late.write}, the {late.function} of the whole row",
                where=f"{self.program.name}, dependence {late.name} -> {reader}",
                why=f"in one loop over the keys {late.write.name} is known behind the last key, "
                f"and {reader} needs it at the first; a scan corrects for a maximum that has "
                "grown, one of each row",
                nearest=f"Multiply or divide by {late.write.name} where it is a factor of the "
                f"whole row, or return it from one function and use it in a second",
            )
        return reference

    def _split(self, reference: Fold | None) -> Chain:
        factors = self._factors(reference)
        name = reference.write.name if reference else ""
        states = []
        for fold in sorted(self.folds, key=lambda one: one is not reference):
            (arg,) = fold.args
            assert isinstance(arg, Access)
            rescaled = reference is not None and name in self.values.behind(arg.name)
            states.append(State(fold.write.name, fold.function, arg.name, rescaled))
            step = f"{fold.write.name} = {fold.function} of {arg.name} becomes a scan"
            self.steps.append(step + (", rescaled by c" if rescaled else ""))
        self.steps.append(
            f"{self.second.write.name} = sum of {self.operand.name} * {self.other().name} "
            "becomes a scan" + (", rescaled by c" if factors else "")
        )
        self.steps.append("a scan steps by blocks of keys: combining is associative")
        masked = states[0].term if reference else self.masked
        folded = [(s.term, s.monoid) for s in states]
        whole = [t.name for t in self.program.inputs if t.dtype == S32 and t.dims]
        values, rows, kept = self.after([s.value for s in states])
        inside = None
        if not (kept or self.returned):  # else rows have all keys
            inside = key_range(self.values, masked, folded, self.operand.name, whole)
        if inside is not None:
            self.steps.append(
                f"row i has the keys {inside}: what {inside.value} is at others adds nothing"
            )
        scores = self.scores([s.term for s in states], kept)
        returned = tuple(one for one in scores.outputs if one.name in self.returned)
        weight, steps = self.operand.name, tuple(self.steps)
        return Chain(
            scores, values, tuple(states), name, factors, weight, rows, steps, inside,
            kept=kept or weight, returned=returned,
        )  # fmt: skip

    def _factors(self, reference: Fold | None) -> tuple[Factor, ...]:
        """c(m, m'), the same for all that is summed under the reference."""
        if reference is None:
            return ()
        name, found = reference.write.name, {}
        terms = [(self.second.name, self.operand.name)]
        for fold in self.folds:
            (arg,) = fold.args
            assert isinstance(arg, Access)
            if name not in self.values.behind(arg.name):
                continue
            if fold.function != "sum":
                raise UnsupportedProgram(
                    f"{fold.name}: the {fold.function} of terms made with {name}",
                    where=f"{self.program.name}, dependence {reference.name} -> {fold.name}",
                    why="a rescale distributes over sums",
                    nearest=f"Return {name} from one function, and fold in a second",
                )
            terms.append((fold.name, arg.name))
        for reader, term in terms:
            if name not in self.values.behind(term):
                continue
            made = separated(self.values, term, reference, reader, self.program.name)
            found[made] = term
            self.steps.append(
                f"{term} under another {name}: a factor c(m, m') = {correction(made)}, whatever "
                f"the key ({reader})"
            )
        if self.operand.name and name not in self.values.behind(self.operand.name):
            return () if not found else self._mixed(reference, ["1", *map(correction, found)])
        if len(found) > 1:
            return self._mixed(reference, list(map(correction, found)))
        return next(iter(found), ())

    def _mixed(self, reference: Fold, found: Sequence[str]) -> tuple[Factor, ...]:
        raise UnsupportedProgram(
            f"sums that {reference.write.name} enters in different ways: {', '.join(found)}",
            where=self.program.name,
            why="a step of the loop has one correction",
            nearest="Make two functions",
        )
