"""What a schedule is chosen for, and a schedule as it fits: what the cost model reads."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes along m, n and k, and the weight of the epilogue.

    Attributes:
        m: rows of the result.
        n: columns of the result.
        k: length of the sums.
        element_bytes: of the operands.
        matrices: whole matrices that the pointwise statements read.
        functions: functions beyond arithmetic that they evaluate for each result.
        pointwise: whether there are any, besides rounding the sums.
        astride: whether rows of an operand lie astride the lines of the cache.
        matrix_bytes: bytes of those matrices per result, all together.
        result_bytes: bytes written per result, all outputs together.
        k_inner: whether k is innermost in the left and in the right operand.
        sum_bytes: of one sum.
        access_bytes: the widest access that the rows of all operands allow, 16 at most.
        products: products that are summed beside each other.
        operands: how many of these carry m, and how many n.
        batches: matrices of results.
        threaded: how many operands that carry m, and that carry n, no copy engine moves: with
            roles, threads shift their rows into place.
        own: whether each of these has operands of its own that carry m, and that carry n.
        uneven: whether these are groups of rows below one another, of which `m` is the mean.
    """

    m: int
    n: int
    k: int
    element_bytes: int = 2
    matrices: int = 0
    functions: int = 0
    pointwise: bool = False
    astride: bool = False
    matrix_bytes: int = 0
    result_bytes: int = 2
    k_inner: tuple[bool, bool] = (True, True)
    sum_bytes: int = 4
    access_bytes: int = 16
    products: int = 1
    operands: tuple[int, int] = (1, 1)
    batches: int = 1
    threaded: tuple[int, int] = (0, 0)
    own: tuple[bool, bool] = (True, True)
    uneven: bool = False

    @property
    def operand_bytes(self) -> tuple[int, int]:
        """Bytes of the left and of the right operands of one matrix of results."""
        left, right = self.operands
        depth = self.k * self.element_bytes
        return left * self.m * depth, right * self.n * depth


@dataclass(frozen=True, slots=True)
class Fitted:
    """A schedule as it fits a program: stages, k tile and way out are final.

    Attributes:
        schedule: as fitted.
        resident: thread blocks that fit one multiprocessor.
        spare: registers of a thread beyond those that the kernel is thought to need; None: unknown.
    """

    schedule: Schedule
    resident: int
    spare: int | None = None
