"""`torch.compile(model, backend="polygen")`: Inductor, with groups of operations as kernels.

PyTorch's own machinery makes the graphs (forward, and backward in training), Inductor compiles
them and all that is left of them. In between `polygen.adapters.torch.rewriting` replaces groups.
This module's log says what was taken and left: ``TORCH_LOGS="+polygen.adapters.torch.backend"``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from polygen.adapters.torch import tensors
from polygen.adapters.torch.rewriting import rewrite
from polygen.adapters.torch.settled import Record, Settings
from polygen.brief import Brief
from polygen.errors import ArgumentError
from polygen.generated import version

log = logging.getLogger(__name__)
_OWN = ("take", "threshold", "measure", "rest")
_TAKE = ("predicted", "measured", "legal")
_said: set[str] = set()


class GroupPass(CustomGraphPass):  # type: ignore[misc]
    """Inductor's hook: replaces groups of each graph that it compiles."""

    def __init__(
        self, settings: Settings, heard: Callable[[Record], None] | None, after: Any = None
    ) -> None:
        self._settings, self._heard, self._after = settings, heard, after

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Rewrite one graph in place."""
        for record in rewrite(graph, self._settings):
            log.info("%s", record)
            if self._heard is not None:
                self._heard(record)
        if self._after is not None:
            self._after(graph)

    def uuid(self) -> Any:
        """What Inductor's cache tells two of these apart by; None: nothing may be kept."""
        if self._heard is not None or self._after is not None:
            return None
        return None if self._settings.take == "measured" else (version(), repr(self._settings))


def polygen(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    heard: Callable[[Record], None] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of `torch.compile`.

    Args:
        graph: from PyTorch's tracer.
        inputs: fake ones of it.
        options: take ("predicted", "measured", "legal"), measure (True is take="measured"),
            threshold (how many times as long a group has to take apart, 1.03 without), rest
            ("inductor" or "eager"); all others are Inductor's.
        mode: of Inductor, as for `torch.compile`.
        heard: called with each record.

    Raises:
        ArgumentError: an option of polygen has no such value.
    """
    own, patches = _options(options or {})
    settings, rest = own
    on_gpu = any(
        isinstance(one, torch.Tensor) and one.device.type in tensors.DEVICES for one in inputs
    )
    if not on_gpu and settings.take != "legal":
        _once("polygen takes no groups of tensors on the CPU: they are left as they are")
    if rest == "eager":
        return _in_eager_mode(graph, inputs, settings, heard)
    from torch._inductor import config, list_mode_options  # noqa: PLC0415
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415

    from polygen.adapters.torch import lowering  # noqa: PLC0415

    lowering.install()
    given = dict(list_mode_options(mode)) if mode else {}
    given |= patches
    before = given.get("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass)
    given["post_grad_custom_pre_pass"] = GroupPass(settings, heard, before)
    compiled: Callable[..., Any] = compile_fx(graph, inputs, config_patches=given)
    return compiled


def _options(options: Mapping[str, Any]) -> tuple[tuple[Settings, str], dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in _OWN}
    take = "measured" if own.get("measure") else own.get("take", Settings().take)
    rest = own.get("rest", "inductor")
    threshold = own.get("threshold", Settings().threshold)
    for name, value, legal in (("take", take, _TAKE), ("rest", rest, ("inductor", "eager"))):
        if value not in legal:
            raise ArgumentError(
                f"{name} = {value!r}",
                where="options",
                nearest=f"Legal: {', '.join(legal)}",
            )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold < 0:
        raise ArgumentError(
            f"threshold = {threshold!r}", where="options", nearest="A number such as 1.05"
        )
    others = {name: value for name, value in options.items() if name not in _OWN}
    return (Settings(take, float(threshold)), rest), others


def _in_eager_mode(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    heard: Callable[[Record], None] | None,
) -> Callable[..., Any]:
    """The graph with groups replaced, run by PyTorch operation by operation."""
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415
    from torch._functorch.aot_autograd import make_boxed_func  # noqa: PLC0415
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

    replace = GroupPass(settings, heard)

    def compiler(one: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        replace(one.graph)
        one.recompile()
        return make_boxed_func(one.forward)

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler, decompositions=select_decomp_table()
    )(graph, inputs)
    return compiled


def _once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Brief):
    """What became of the groups of a model.

    Attributes:
        records: of each graph in turn.
    """

    records: tuple[Record, ...] = field(default=())

    @property
    def taken(self) -> tuple[Record, ...]:
        """The groups that became kernels."""
        return tuple(record for record in self.records if record.taken)

    def __str__(self) -> str:
        count = len(self.taken)
        head = f"{len(self.records)} groups, {count} taken"
        return "\n".join([head, *map(str, self.records)])


def explain(
    model: Callable[..., Any],
    *operands: Any,
    options: Mapping[str, Any] | None = None,
    backward: bool = False,
) -> Explanation:
    """Compile and run a model once, and say what became of its groups.

    Args:
        model: a module or a function.
        operands: of a call.
        options: as for `torch.compile(model, backend="polygen", options=…)`.
        backward: go backwards from the sum of the results, too.
    """
    records: list[Record] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return polygen(graph, inputs, options=options, heard=records.append)

    result = torch.compile(model, backend=compiler)(*operands)
    if backward:
        parts = result if isinstance(result, tuple | list) else (result,)
        sum(part.sum() for part in parts).backward()
    return Explanation(tuple(records))
