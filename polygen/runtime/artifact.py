"""`Artifact`: what the compiler made of one `KernelSource`."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.brief import Brief


@dataclass(frozen=True, slots=True)
class Resources:
    """What one block or thread of the compiled kernel takes."""

    registers: int  # per thread
    spill_store_bytes: int  # per thread
    spill_load_bytes: int  # per thread
    stack_bytes: int  # local memory per thread
    shared_bytes: int  # per block, static and dynamic together
    threads: int  # per block

    def __str__(self) -> str:
        spills = self.spill_store_bytes + self.spill_load_bytes
        return (
            f"{self.registers} registers, {self.threads} threads, {self.shared_bytes} B shared, "
            f"{spills} B spilled, {self.stack_bytes} B stack"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Artifact(Brief):
    """PTX, cubin and what the compiler said about them."""

    ptx: str
    cubin: bytes
    resources: Resources
    log: str  # the compiler's log without its timings
    compiler: str  # "NVRTC 13.0.88"

    def __str__(self) -> str:
        return f"{self.compiler}: {self.resources}, cubin of {len(self.cubin)} bytes"
