"""A program whose arrays have other alignments."""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.program import Program, Tensor


def realigned(program: Program, alignment: dict[str, int], ragged: tuple[str, ...] = ()) -> Program:
    """The program with other alignments (bytes by tensor) and with ragged rows where named."""
    alone = {program.ends, *program.gathered}

    def change(tensor: Tensor) -> Tensor:
        if tensor.name in alone:  # read element by element
            return tensor
        return replace(
            tensor,
            alignment=alignment.get(tensor.name, tensor.alignment),
            ragged=tensor.ragged or tensor.name in ragged,
        )

    return replace(
        program,
        inputs=tuple(map(change, program.inputs)),
        outputs=tuple(map(change, program.outputs)),
    )
