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
        access_bytes: the widest access that the rows of both operands allow, 16 at most.
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

    @property
    def operand_bytes(self) -> tuple[int, int]:
        """Bytes of the left and of the right operand."""
        return self.m * self.k * self.element_bytes, self.n * self.k * self.element_bytes


@dataclass(frozen=True, slots=True)
class Fitted:
    """A schedule as it fits a program: stages, k tile and way out are final."""

    schedule: Schedule
    resident: int  # thread blocks that fit one multiprocessor
