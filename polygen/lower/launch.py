"""What a launch must know of a kernel: its parameters and its grid; plain data that need no isl."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Dim, Tensor


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel parameter, in order."""

    name: str  # C identifier
    # "pointer" (u64), "size" (s32), "stride" (s32, in elements), "scalar" (f32), or "map": a tensor
    # map (128 bytes by value) with which the copy engine moves boxes of the tensor
    kind: str
    tensor: str = ""  # for all but size: the tensor
    axis: int = 0  # for stride: the axis whose step it is
    dim: str = ""  # for size: the symbolic dim
    box: tuple[int, int] = (0, 0)  # for map: elements of a box along the stored axes, outer first
    swizzle: int = 0  # for map: bytes of the span inside which 16-byte chunks are swapped, or 0


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch shape; the grid depends on the sizes only through tile counts.

    One block per tile: ``grid.x = ceil(size[across] / tile_across) * group`` and
    ``grid.y = ceil(ceil(size[along] / tile_along) / group)``, ``grid.z = 1``.

    Persistent blocks: ``grid.x`` is as many whole clusters as run at once, at most one per cluster
    of tiles; each block works through its share of the tiles.
    """

    along: Dim  # the dim that groups run along: a symbolic dim or a number
    across: Dim
    tile_along: int
    tile_across: int
    group: int
    threads: int  # per block
    shared_bytes: int  # dynamic shared memory
    persistent: int = 0  # blocks that run at once on the target; 0: one block per tile
    cluster: tuple[int, int] = (1, 1)  # blocks along, across

    def grid(self, sizes: dict[str, int], resident: int = 0) -> tuple[int, int, int]:
        """The grid for concrete sizes.

        Args:
            sizes: of the symbolic dims.
            resident: of persistent blocks, how many run at once; 0: as on the target.
        """
        along = self.along if isinstance(self.along, int) else sizes[self.along]
        across = self.across if isinstance(self.across, int) else sizes[self.across]
        if self.persistent:
            blocks = self.cluster[0] * self.cluster[1]
            work = -(-along // (self.tile_along * self.cluster[0]))
            work *= -(-across // (self.tile_across * self.cluster[1]))
            most = (resident or self.persistent) // blocks
            return (min(most, work) * blocks, 1, 1)
        tiles_along = -(-along // self.tile_along)
        return (-(-across // self.tile_across) * self.group, -(-tiles_along // self.group), 1)


def stride_argument(tensor: Tensor, axis: int) -> str:
    """The kernel argument that holds the step of `axis`."""
    return f"{tensor.name}_stride{axis}"
