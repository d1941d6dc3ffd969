"""Models that `docs/measure_models.py` runs: two blocks written out, and public definitions.

A definition is made with random weights, in a configuration of few layers whose widths are those of
a published model, so that compiling it takes seconds and its kernels are the published one's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BASE, THETA = 128, 10000.0
ROWS = (2048, 1, 16, 64, 4)  # of the Llama block, by importance


@dataclass(frozen=True)
class Model:
    """One row of the record.

    Attributes:
        make: a module, on the default device, of float32.
        inputs: of a call, by the module's scale: whole, or small enough for a CPU.
        source: the library that defines it.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[bool], tuple[torch.Tensor, ...]]
    source: str = "written out"


class RMSNorm(nn.Module):
    """As Llama has it: the mean of squares in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows by their root mean square."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (wide * scale).to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    """RMSNorm, queries, keys and values, causal attention, SwiGLU, residuals: as Llama 3 8B."""

    def __init__(
        self, width: int = 4096, heads: int = 32, few: int = 8, hidden: int = 14336
    ) -> None:
        super().__init__()
        linear = functools.partial(nn.Linear, bias=False)
        self.heads, self.few, self.dim = heads, few, width // heads
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        self.q, self.o = linear(width, width), linear(width, width)
        self.k, self.v = linear(width, few * self.dim), linear(width, few * self.dim)
        self.gate, self.up, self.down = (
            linear(width, hidden), linear(width, hidden), linear(hidden, width)
        )  # fmt: skip

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """One block."""
        batch, rows, width = x.shape
        y = self.first(x)

        def heads(made: torch.Tensor, count: int) -> torch.Tensor:
            return made.view(batch, rows, count, self.dim).transpose(1, 2)

        q, k = heads(self.q(y), self.heads), heads(self.k(y), self.few)
        v = heads(self.v(y), self.few)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, rows, width))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class VisionBlock(nn.Module):
    """LayerNorm, attention, an MLP with GELU, residuals: as ViT-B."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        batch, rows, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, rows, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def _llama(rows: int) -> Model:
    def inputs(small: bool) -> tuple[torch.Tensor, ...]:
        turns = THETA ** (-torch.arange(0, BASE, 2, dtype=torch.float32) / BASE)
        angles = torch.arange(rows, dtype=torch.float32)[:, None] * torch.cat((turns, turns))
        return torch.randn(1, rows, 4096), angles.cos(), angles.sin()

    return Model(LlamaBlock, inputs)


def blocks() -> dict[str, Model]:
    """The blocks by name, in the order in which they are measured."""
    found = {f"Llama block, {rows} tokens": _llama(rows) for rows in ROWS}
    vision = Model(VisionBlock, lambda small: (torch.randn(2 if small else 64, 197, 768),))
    first, *others = found.items()
    return dict([first, ("ViT-B block, 64 images", vision), *others])


# --- definitions of transformers ------------------------------------------------------------------
_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    # The model's class without "Model", and what of its configuration is not as published. Names of
    # sizes differ between configurations; widths are those of the base models.
    "Bert": ("", {}),
    "Llama": ("", {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000}),
    "GPT2": ("", {"n_layer": 2}),
    "Qwen2": ("", {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
                   "num_key_value_heads": 2, "vocab_size": 32000}),
    "Qwen3": ("", {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000}),
    "Mistral": ("", {"hidden_size": 2048, "intermediate_size": 7168, "num_attention_heads": 16,
                     "num_key_value_heads": 8, "head_dim": 128}),
    "Gemma": ("", {"hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
                   "num_key_value_heads": 1, "vocab_size": 32000}),
    "Phi3": ("", {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32}),
    "GPTNeoX": ("", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}),
    "OPT": ("", {"hidden_size": 768, "ffn_dim": 3072}),
    "Roberta": ("", {"max_position_embeddings": 514}),
    "DistilBert": ("", {"n_layers": 2}),
    "Electra": ("", {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                     "embedding_size": 768}),
    "StableLm": ("", {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
                      "num_key_value_heads": 32, "vocab_size": 32000}),
    "Olmo2": ("", {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
                   "vocab_size": 32000}),
    "Granite": ("", {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "vocab_size": 32000}),
    "T5Encoder": ("T5", {"d_model": 768, "d_ff": 3072, "num_heads": 12}),
    "Falcon": ("", {"hidden_size": 2048, "num_attention_heads": 32, "vocab_size": 32000}),
    "Albert": ("", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
}  # fmt: skip
_IMAGES: dict[str, dict[str, Any]] = {"ViT": {}, "Dinov2": {}, "DeiT": {}, "CLIPVision": {}}
_VISION = ("vit_b_16", "swin_t", "convnext_tiny", "resnet50", "mobilenet_v3_large",
           "efficientnet_b0", "regnet_y_400mf")  # fmt: skip


class First(nn.Module):
    """The first tensor that a model gives, of one tensor."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        found = self.model(x, **self.options)
        while not isinstance(found, torch.Tensor):
            found = found[0]
        return found


def _of_transformers(name: str, config: str, changes: dict[str, Any], kind: str) -> Model:
    def make() -> nn.Module:
        import transformers  # noqa: PLC0415

        known = getattr(transformers, f"{config}Config")
        names = {"num_hidden_layers": 2, "num_layers": 2}
        changed = dict(changes)
        own = known()
        for option, value in names.items():
            if hasattr(own, option) and not {"n_layer", "n_layers"} & set(changes):
                changed.setdefault(option, value)
        with_layers = known(**changed)
        model = getattr(transformers, f"{name}Model")(with_layers)
        options = {"use_cache": False} if kind == "text" and hasattr(own, "use_cache") else {}
        if "Encoder" in name:
            options = {}
        return First(model, options)

    def inputs(small: bool) -> tuple[torch.Tensor, ...]:
        if kind == "text":
            return (torch.randint(5, 1000, (1, 32) if small else (8, 512)),)
        return (torch.randn(1 if small else 32, 3, 224, 224),)

    return Model(make, inputs, "transformers")


def _of_torchvision(name: str) -> Model:
    def make() -> nn.Module:
        import torchvision  # noqa: PLC0415

        return First(torchvision.models.get_model(name, weights=None), {})

    return Model(make, lambda s: (torch.randn(1 if s else 32, 3, 224, 224),), "torchvision")


def models() -> dict[str, Model]:
    """Public definitions by name; libraries are imported when one is made."""
    found = {
        f"{name}, 2 layers": _of_transformers(name, config or name, changes, "text")
        for name, (config, changes) in _TEXT.items()
    }
    found |= {
        f"{name}, 2 layers": _of_transformers(name, name, changes, "images")
        for name, changes in _IMAGES.items()
    }
    first = list(found.items())
    vision = [(name, _of_torchvision(name)) for name in _VISION]
    return dict([*first[:4], *vision[:2], *first[4:20], *vision[2:], *first[20:]])
