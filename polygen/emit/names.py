"""C identifiers for the user's names: they keep theirs unless the kernel uses it itself.

The names the kernel uses are read off the templates, so the list cannot go stale; a clash gets an
underscore.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib.resources import files

from polygen.emit.primitives import PRIMITIVES
from polygen.frontend.indices import Dim, named_in, times_in

# Names that Python code writes into the leaves, and loop iterators.
_WRITTEN_TEXT = (
    "t s m n r k p e i u from to left inside bytes row column rows_left piece from_row from_column "
    "low high word words safe_row sums sum count min max "
    "zero mma copy_a copy_b load_a load_b stage store prepare commit b_m b_n pass "
    "get put made held compute_copy pieces piece part number own start joined range any whole at "
    "portion to_row "
    "to_column from_row from_column "
    "locate fill multiply finish work matrix band in_band width rank owner turn quarter "
    "fold unfold full low_a low_b address_a address_b fragment_a fragment_b place_scratch "
    "section item groups rows_before rows_of_group tiles_m tiles_n RowGroups all_tiles "
    "find_together scores weights correction reference keys first_key half_rows first_row now "
    "share own_tiles own_items part_tiles chunk head beside offset first "
    "TileWalk TileColumn domain domain_tiles domain_items others of_matrix start "
    "lines block segment segments block_rows rest held own "
    "before after worth term_of_reference terms_of_score store_parts k_lowest k_highest k_of_all "
    "own_row row_of_all turn_of_row fold_i own_k first_k access element "
    "matrices left together taken wide behind whole paired pairs in_pairs places last_place lap "
    "Cursor Divisor per_matrix per_band last_width __attribute__ always_inline __syncwarp"
)
_WRITTEN = frozenset(_WRITTEN_TEXT.split())
_KEYWORDS_TEXT = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "constexpr continue decltype default delete do double else enum explicit export extern false "
    "float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public register return short signed sizeof static struct "
    "switch template this throw true try typedef typeid typename union unsigned using virtual void "
    "volatile while xor xor_eq dim3 uint2 uint4 blockIdx threadIdx blockDim gridDim stream "
    "NULL NAN INFINITY HUGE_VAL HUGE_VALF EOF INT_MAX INT_MIN UINT_MAX CHAR_BIT RAND_MAX M_E M_PI "
    "assert errno linux unix stdin stdout stderr"  # macros of nvcc's own includes and of gcc
)
# Leaves that synchronise, and counters of slots, are named after what they are about.
_MADE = re.compile(
    r"(wait|arrive|bar|fence|retire|skip|fetch)_|\w+_(warps|producer|loader|consumer)(_behind)*$"
    r"|z\d+$|over\d+$|k_inside$|(sum|mma|multiply|multiply_matrices|low_[ab])_\d+s?$|(copy|load|fragment)_[ab]\d*$"
    r"|(find|page|fill)_[abc]$|(begin|tally|share|leave)_[ab]\d*$|norms_[ab]\d*(_at)?$"
    r"|(inner|scales|promote|read_scales|promote_last)(_\d+)?(_row|_column|_all)?$"
    r"|(begin|combine|give|take|finish|walk)_\d+(_\d+)?$|elements$|results$|(begin|merge)_(reference|states|sum)$|combine_[a-z_]+$|fold_(i|q|w|place|rows?|columns|block|results?|read\d+_words|parts(_\d+)?|elements|own|v\d+(_\w+)?|(at|from|\w+_part)?\d+|at|e)$"
    r"|((part|whole)_)?state_\w+$|part_sums$|(items|tiles_m|tiles_n)_\d+$"
    r"|(from|to|blocks|length|extent|step|end|rows|pitch)_\d+(_\d+)?$|realign_\w+$"
    r"|kept_end$|(row_at|read_)\d+$|row_v\d+|\w+_r\d+$"
)
_KEYWORDS = frozenset(_KEYWORDS_TEXT.split())
_KERNEL_SCOPE = ("kernel.cu.j2", "launcher.cu.j2", "header.h.j2", "frame", "leaf")
_GLOBAL_SCOPE = ("types.cu.j2", "instructions", "functions")


@functools.cache
def reserved() -> frozenset[str]:
    """Every identifier that a kernel may use itself."""
    found = set(_WRITTEN | _KEYWORDS)
    for text in _templates(_KERNEL_SCOPE):
        text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", " ", text)
        found |= set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|\.\w+|\"[^\"]*\"", "", text)))
    for text in _templates(_GLOBAL_SCOPE):
        found |= set(re.findall(r"([A-Za-z_]\w*)\s*\(", text))
    forms = " ".join(f"{p.accurate} {p.fast}" for p in PRIMITIVES.values())
    return frozenset(found | set(re.findall(r"[a-z_]\w*(?=\()", forms)))


def _templates(names: tuple[str, ...]) -> Iterator[str]:
    """The texts of templates, and of all that are in a folder."""
    for name in names:
        place = files("polygen.emit") / "templates" / name
        parts = [place] if place.is_file() else list(place.iterdir())
        yield from (p.read_text(encoding="utf-8") for p in parts if p.name.endswith(".j2"))


def c_size(dim: Dim) -> str:
    """A size as C: a number, a name, or a multiple of one."""
    if isinstance(dim, int):
        return str(dim)
    (name,), times = map(c_name, named_in(dim)), times_in(dim)
    return name if times == 1 else f"({times} * {name})"


def c_name(name: str) -> str:
    """The identifier under which the kernel knows a tensor, a size or one of their strides.

    Different names stay different: ``sum`` becomes ``sum_``, and ``sum_`` becomes ``sum__``. Names
    that start with ``__``, or ``_`` and a capital, are kept by C for itself.
    """
    own = name.rstrip("_")
    taken = own in reserved() or _MADE.match(own) or re.match(r"_[_A-Z]", name)
    return f"{name}_" if taken else name
