"""Random modules and operators of PyTorch, called again and again while all around them changes.

A seed decides everything: a module, how it is compiled, and what happens between its calls.
A twin of the module runs in eager mode; whatever happens to one happens to both. Results,
gradients, buffers and inputs that are written are to be as close to those in float64 as the twin's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import polygen.adapters.torch as pgt

BF16, F16 = torch.bfloat16, torch.float16
WIDTH = 16


# A function with a kink has no gradient that is nearly right: those are called without gradients.
SMOOTH = (functional.gelu, functional.silu, torch.tanh)
KINKED = (functional.relu, functional.hardswish)


# --- modules --------------------------------------------------------------------------------------
class Layer(nn.Module):
    """A product, perhaps with a bias, and a function."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        hidden = rng.choice([16, 24, 17])
        self.up = nn.Linear(WIDTH, hidden, bias=rng.random() < 0.7)
        self.down = nn.Linear(hidden, WIDTH, bias=rng.random() < 0.5)
        self.act = rng.choice(acts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x))) + x


class Gated(nn.Module):
    """Two products of one value."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        self.up, self.gate = (nn.Linear(WIDTH, 24, bias=rng.random() < 0.5) for _ in range(2))
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x) * functional.silu(self.gate(x)))


class Tied(nn.Module):
    """One weight, multiplied from both sides."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 24, bias=False)
        self.bias, self.act = nn.Parameter(torch.randn(WIDTH) / 4), rng.choice(acts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.act(self.up(x)) @ self.up.weight + self.bias)


class Sliced(nn.Module):
    """Parts of one packed weight, and of its result."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.randn(3 * WIDTH + 1, WIDTH) / 4)
        self.first, self.act = rng.choice([0, 1, 3, 8]), rng.choice(acts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.packed[self.first : self.first + 2 * WIDTH]
        a, b = functional.silu(x @ w.t()).chunk(2, -1)
        return self.act(a @ w[:WIDTH]) * 0.5 + b


class Counting(nn.Module):
    """A buffer that every call writes."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(WIDTH, WIDTH), rng.choice(acts)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not inside the function: Inductor's own backward passes read what was written since.
        y = self.act(self.up(x)) + self.seen
        self.seen.add_(0.25)
        return y


class Batched(nn.Module):
    """Products of matrices of a batch, with their axes turned."""

    def __init__(self, rng: random.Random, acts: Sequence[Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, WIDTH // 2, WIDTH // 2) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 2, WIDTH // 2).transpose(0, 1)
        y = functional.gelu(rows @ self.w) * 2
        return y.transpose(0, 1).reshape(x.shape)


PARTS = (Layer, Gated, Tied, Sliced, Counting, Batched)


class Model(nn.Module):
    """Some parts one after the other, and an end that decides what the results are."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.smooth = rng.random() < 0.7
        acts = SMOOTH if self.smooth else KINKED
        self.parts = nn.ModuleList(rng.choice(PARTS)(rng, acts) for _ in range(rng.randint(1, 3)))
        self.act = rng.choice(acts)
        self.norm = nn.LayerNorm(WIDTH) if rng.random() < 0.4 else nn.Identity()
        self.last = nn.Linear(WIDTH, rng.choice([8, 24]))
        self.end = rng.choice(ENDS)
        self.writes = rng.random() < 0.2

    def forward(self, x: torch.Tensor) -> Any:
        if self.writes:
            x.mul_(0.5)
        y = self.norm(x)
        for part in self.parts:
            y = part(y)
        return self.end(x, self.act(self.last(y)))


def _itself(x: torch.Tensor, y: torch.Tensor) -> Any:
    return y


def _turned(x: torch.Tensor, y: torch.Tensor) -> Any:
    return y.transpose(-1, -2), y * 2


def _with_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    # PyTorch itself gives a view of the storage's begin for one of an input that starts elsewhere.
    again = x.view_as(x) if x.storage_offset() == 0 else x.clone()
    return {"input": again, "part": y[..., 1:5], "flat": y.reshape(-1)}


def _twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    return [y, y.view(-1, y.shape[-1]), y.sum()]


def _input(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x, y.float()


ENDS = (_itself, _turned, _with_views, _twice, _input)


# --- inputs ---------------------------------------------------------------------------------------
def _laid_out(rng: random.Random, given: torch.Tensor) -> torch.Tensor:
    """The values in other places."""
    kind = rng.choice(["plain", "turned", "wide", "odd", "strided", "one row", "unaligned"])
    if kind == "turned":
        return given.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "wide":
        room = given.new_full((*given.shape[:-1], 3 * WIDTH), 9)
        room[..., WIDTH : 2 * WIDTH] = given
        return room[..., WIDTH : 2 * WIDTH]
    if kind == "odd":
        room = given.new_full((*given.shape[:-1], WIDTH + 3), 9)
        room[..., 1 : WIDTH + 1] = given
        return room[..., 1 : WIDTH + 1]
    if kind == "strided":
        room = given.new_full((*given.shape[:-1], 2 * WIDTH), 9)
        room[..., ::2] = given
        return room[..., ::2]
    if kind == "one row" and given.numel():
        return given[..., :1, :].expand(given.shape)
    if kind == "unaligned":
        room = given.new_full((given.numel() + 9,), 9)
        start = rng.randint(1, 8)
        room[start : start + given.numel()] = given.reshape(-1)
        return room[start : start + given.numel()].view(given.shape)
    return given.clone()


def _same_places(found: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same values, steps and offset in its storage."""
    whole = found.untyped_storage().clone()
    made = torch.empty(0, dtype=found.dtype, device=found.device)
    return made.set_(whole, found.storage_offset(), found.shape, found.stride())


# --- comparisons ----------------------------------------------------------------------------------
def leaves(found: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [one for one in torch.utils._pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]


def compare(what: str, found: Any, usual: Any, exact: Any) -> None:
    """Of the same form as eager's, and as close to the exact values but for some roundings."""
    each = [leaves(one) for one in (found, usual, exact)]
    assert len(each[0]) == len(each[1]) == len(each[2]), what
    for number, (own, other, wanted) in enumerate(zip(*each, strict=True)):
        where = f"{what}, tensor {number}"
        assert (own.shape, own.dtype) == (other.shape, other.dtype), where
        assert own.requires_grad == other.requires_grad, where
        if not own.numel():
            continue
        assert own.isfinite().all(), where
        wide = [one.detach().double() for one in (own, other, wanted)]
        scale = max(wide[2].abs().max().item(), 1e-3)
        kept = own.dtype if own.dtype in (BF16, F16) else BF16  # of what was rounded on the way
        room = 2 * (wide[1] - wide[2]).abs().max().item() + 8 * torch.finfo(kept).eps * scale
        worst = (wide[0] - wide[2]).abs().max().item()
        assert worst <= room, f"{where}: off by {worst:.3g}, {room:.3g} allowed of {scale:.3g}"


# --- what happens between calls -------------------------------------------------------------------
class Pair:
    """A compiled module and its twin.

    Args:
        seed: decides everything.
        device: "cuda", or "cpu" on a stand-in.
        options: of the backend.
    """

    def __init__(self, seed: int, device: str, options: dict[str, Any], **how: Any) -> None:
        self.rng, self.device, self.log = random.Random(seed), device, list[str]()
        torch.manual_seed(seed)
        self.dtype = BF16
        self.again = self.rng.random() < 0.5  # graphs are gone through twice
        self.twin = Model(self.rng).to(device, BF16)
        self.options, self.how = options, how
        self.heard: list[Any] = []
        self.model = copy.deepcopy(self.twin)
        self.call = self.compiled(self.model)

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """The module by the backend."""
        if "backend" in self.how:
            return torch.compile(module, **self.how)
        backend = functools.partial(pgt.polygen, options=self.options, heard=self.heard.append)
        return torch.compile(module, backend=backend, **self.how)

    # each of these changes both alike
    def step(self) -> None:
        """A step of an optimizer, in place."""
        for module in (self.model, self.twin):
            given = [p for p in module.parameters() if p.grad is not None]
            torch.optim.SGD([*given, *(() if given else module.parameters())], lr=1e-2).step()

    def replace_parameters(self) -> None:
        """Some parameters are others."""
        for name, _ in list(self.twin.named_parameters()):
            if self.rng.random() < 0.5:
                path, _, leaf = name.rpartition(".")
                value = torch.randn_like(self.twin.get_parameter(name)) / 4
                for module in (self.model, self.twin):
                    kept = module.get_parameter(name).requires_grad
                    setattr(module.get_submodule(path), leaf, nn.Parameter(value.clone(), kept))

    def replace_data(self) -> None:
        """Parameters stay, and what they hold lies somewhere else."""
        for own, other in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            value = torch.randn_like(other) / 4
            own.data, other.data = value.clone(), value

    def load(self) -> None:
        """`load_state_dict`, by copying or by assigning."""
        state = {k: torch.randn_like(v) / 4 for k, v in self.twin.state_dict().items()}
        assign = self.rng.random() < 0.5
        for module in (self.model, self.twin):
            module.load_state_dict({k: v.clone() for k, v in state.items()}, assign=assign)

    def convert(self) -> None:
        """Another type."""
        self.dtype = F16 if self.dtype == BF16 else BF16
        for module in (self.model, self.twin):
            module.to(self.dtype)

    def away_and_back(self) -> None:
        """All tensors move."""
        for module in (self.model, self.twin):
            module.to(torch.float32).to(self.dtype)

    def freeze(self) -> None:
        """Some parameters want gradients, some do not."""
        for own, other in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            other.requires_grad_(self.rng.random() < 0.6)
            own.requires_grad_(other.requires_grad)

    def copy(self) -> None:
        """The compiled module is a copy of itself."""
        self.model = copy.deepcopy(self.model)
        self.call = self.compiled(self.model)

    def litter(self) -> None:
        """What is free is written on by others."""
        gc.collect()
        many = [torch.full((n,), float("nan"), device=self.device) for n in range(8, 4096, 8)]
        del many

    def turned_weights(self) -> None:
        """Weights lie column by column."""
        for module in (self.model, self.twin):
            for parameter in module.parameters():
                if parameter.dim() == 2:
                    parameter.data = parameter.data.t().contiguous().t()

    def unaligned_weights(self) -> None:
        """Weights begin anywhere."""
        start = self.rng.randint(1, 7)
        for module in (self.model, self.twin):
            for parameter in module.parameters():
                room = parameter.data.new_zeros(parameter.numel() + 8)
                part = room[start : start + parameter.numel()].view(parameter.shape)
                parameter.data = part.copy_(parameter.data)

    EVENTS = (
        "step", "replace_parameters", "replace_data", "load", "convert", "away_and_back",
        "freeze", "copy", "litter", "turned_weights", "unaligned_weights",
    )  # fmt: skip

    def happen(self) -> None:
        """Something, or nothing."""
        if self.rng.random() < 0.6:
            name = self.rng.choice(self.EVENTS)
            self.log.append(name)
            getattr(self, name)()

    # --- calls
    def run(self) -> None:
        """One call, compared."""
        rng = self.rng
        batch = rng.choice([0, 1, 1, 2, 3, 5, 8, 16, 37])
        shape = (batch, WIDTH) if rng.random() < 0.6 else (batch, 3, WIDTH)
        given = _laid_out(rng, torch.randn(shape, device=self.device).to(self.dtype))
        if self.twin.writes and 0 in given.stride():
            given = given.contiguous()
        modes = ["no_grad", "inference", "autocast"]
        if self.twin.smooth:
            modes += ["grad", "grad", "grad again" if self.again else "grad"]
        mode = rng.choice(modes)
        leaf = (
            rng.random() < 0.5
            and mode.startswith("grad")
            and not self.twin.writes
            and 0 not in given.stride()
        )
        self.log.append(f"{mode} {tuple(shape)} {given.stride()} {given.dtype} leaf={leaf}")
        exact = copy.deepcopy(self.twin).double()
        inputs = [_same_places(given), _same_places(given), given.double()]
        for one in inputs:
            one.requires_grad_(leaf)
        calls = [self.call, self.twin, exact]
        modules = [self.model, self.twin, exact]
        found = []
        for call, one in zip(calls, inputs, strict=True):
            with _mode(mode, self.device):
                found.append(call(one))
        compare("results", *found)
        compare("inputs", *inputs)
        compare("buffers", *(list(module.buffers()) for module in modules))
        for own, other in zip(*(leaves(one) for one in found[:2]), strict=True):
            assert (own is inputs[0]) == (other is inputs[1]), "an output that is the input"
            shared = [
                one.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
                for one, given in ((own, inputs[0]), (other, inputs[1]))
            ]
            assert shared[0] == shared[1] or not own.numel(), "an output in the input's memory"
        if not mode.startswith("grad"):
            return
        times = 2 if mode == "grad again" else 1
        for module, result in zip(modules, found, strict=True):
            module.zero_grad()
            wanted = [part for part in leaves(result) if part.requires_grad]
            for _ in range(times if wanted else 0):
                total = sum((part.double() * _weights(part)).sum() for part in wanted)
                total.backward(retain_graph=times > 1)
        names = [name for name, p in self.twin.named_parameters() if p.grad is not None]
        assert names == [n for n, p in self.model.named_parameters() if p.grad is not None]
        for name in names:
            compare(f"gradient of {name}", *(m.get_parameter(name).grad for m in modules))
        if leaf:
            compare("gradient of the input", *(one.grad for one in inputs))


def _weights(part: torch.Tensor) -> torch.Tensor:
    """What gradients arrive as; not expanded, and of no pattern."""
    steps = torch.arange(part.numel(), device=part.device, dtype=torch.float64)
    return torch.cos(steps).view(part.shape)


@contextlib.contextmanager
def _mode(name: str, device: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if name == "no_grad":
            stack.enter_context(torch.no_grad())
        elif name == "inference":
            stack.enter_context(torch.inference_mode())
        elif name == "autocast":
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(device, dtype=BF16))
        yield


def run(seed: int, device: str, options: dict[str, Any], calls: int = 8, **how: Any) -> Pair:
    """A seed's calls; what has happened is in the error.

    Args:
        seed: decides everything.
        device: "cuda", or "cpu" on a stand-in.
        options: of the backend.
        calls: how many.
        how: to compile, as `dynamic`.
    """
    torch._dynamo.reset()
    pair = Pair(seed, device, options, **how)
    with torch._functorch.config.patch(donated_buffer=not pair.again):
        for _ in range(calls):
            pair.happen()
            try:
                pair.run()
            except BaseException as error:
                error.add_note(f"seed {seed}: {pair.twin}\n" + "\n".join(pair.log))
                raise
    return pair
