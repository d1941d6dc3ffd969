"""Whether a chain of two products is predicted to be faster as two kernels, what lies between them
in memory.

One kernel reads and writes less, and its tiles hold all columns of their rows, so that few rows are
few blocks: which of the two weighs more the cost models of both say. Chains that fold over their
keys, as attention does, stay one: what lies between their products is a matrix of keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from polygen.chained import is_chain, matched, with_numbers
from polygen.decision import predicted
from polygen.errors import PolygenError
from polygen.fit_chain import predicted_time
from polygen.frontend.program import Program
from polygen.hardware.data_file import read
from polygen.hardware.device import Device
from polygen.pipeline import with_sizes
from polygen.rewrite.cuts import cuts, levels

_FILE = "chains.toml"
_TWO = 2  # products behind each other


def faster_apart(program: Program, sizes: Mapping[str, int], device: Device) -> bool:
    """Whether two kernels are predicted to take less time than the chain's one.

    Args:
        program: whose products may multiply what others sum.
        sizes: of its symbolic dims; where one is not known nothing is predicted.
        device: the target.
    """
    if max(levels(program).values()) != _TWO or any(dim not in sizes for dim in program.sizes):
        return False
    known = {name: sizes[name] for name in program.sizes}
    try:
        numbered = with_numbers(program, known)
        if not is_chain(numbered) or matched(numbered).chain.states:
            return False
        chain = predicted_time(with_sizes(numbered, known), device, known)
    except PolygenError:  # the one is refused, with its reason, by whoever makes it
        return False
    cut = next(cuts(program, known))
    parts = [predicted(with_sizes(one, known), device, known) for one in (cut.before, cut.after)]
    apart = sum(one for one in parts if one is not None)
    return None not in parts and apart < read(_FILE)["apart"]["longer"] * chain
