"""What is known of a program's arrays before its passes run."""

import pytest

from polygen.api import fuse
from polygen.pipeline import with_sizes


@pytest.mark.parametrize(
    ("signature", "sizes", "alignment"),
    [
        (("bf16[M,K]", "bf16[K,N]"), {"K": 4}, 8),
        (("bf16[1,K]", "bf16[K,N]"), {"K": 4}, 16),
        (("bf16[B,M,K]", "bf16[K,N]"), {"K": 4}, 8),
        (("bf16[1,M,K]", "bf16[K,N]"), {"K": 4}, 8),
        (("bf16[B,1,K]", "bf16[K,N]"), {"K": 4}, 8),
        (("bf16[1,1,K]", "bf16[K,N]"), {"K": 4}, 16),
        (("bf16[B,M,K]:col", "bf16[K,N]"), {"M": 2, "K": 4}, 4),
        (("bf16[K]", "bf16[K,N]"), {"K": 4}, 16),
    ],
)
def test_rows_of_known_length_bound_the_alignment(signature, sizes, alignment):
    program = fuse(lambda x, w: x @ w, name="f").program(*signature)
    assert with_sizes(program, sizes).inputs[0].alignment == alignment
