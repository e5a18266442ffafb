"""A small transformer that reads and writes characters. Plain torch; it knows nothing of Sonde.

Shapes: B sequences, T characters, D width, H heads, K width of a head, V different characters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.demo.scenarios import Shape


class Transformer(nn.Module):
    """Characters in, a score for every next character out."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)
        _initialise(self, shape)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embed(ids_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        scores_BTV: Tensor = self.head(self.norm(x_BTD))
        return scores_BTV


class Block(nn.Module):
    """Attention, then the MLP, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn_norm = _norm(shape)
        self.attn = Attention(shape)
        self.mlp_norm = _norm(shape)
        self.mlp = MLP(shape)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attn(self.attn_norm(x_BTD))
        y_BTD: Tensor = x_BTD + self.mlp(self.mlp_norm(x_BTD))
        return y_BTD


class Attention(nn.Module):
    """Each position looks at itself and those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.turns_TK: Tensor
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.register_buffer("turns_TK", _turns(shape), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        split = self.qkv(x_BTD).unflatten(-1, (3, self.heads, -1))
        q_BHTK, k_BHTK, v_BHTK = split.permute(2, 0, 3, 1, 4)
        mixed_BHTK = functional.scaled_dot_product_attention(
            self._turned(q_BHTK), self._turned(k_BHTK), v_BHTK, is_causal=True
        )
        y_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return y_BTD

    def _turned(self, x_BHTK: Tensor) -> Tensor:
        """Rotary positions: pairs of values turn with the position, so that distances count."""
        cos_TK, sin_TK = self.turns_TK[: x_BHTK.shape[2]].chunk(2, dim=-1)
        a, b = x_BHTK.chunk(2, dim=-1)
        return torch.cat([a * cos_TK - b * sin_TK, a * sin_TK + b * cos_TK], dim=-1)


class MLP(nn.Module):
    """Each position by itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(self.act(self.up(x_BTD)))
        return y_BTD


def _turns(shape: Shape) -> Tensor:
    """Cosines, then sines, of what each pair of values turns by at each position."""
    width = shape.width // shape.heads
    speeds = 10_000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(shape.context)[:, None] * speeds
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _norm(shape: Shape) -> nn.Module:
    return nn.LayerNorm(shape.width) if shape.is_normalised else nn.Identity()


def _initialise(model: Transformer, shape: Shape) -> None:
    """Normal weights; what is added to the residual stream is smaller, the deeper the network."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            is_added = name.endswith(("attn.out.weight", "mlp.down.weight"))
            depth = 1 / math.sqrt(2 * shape.blocks) if is_added else 1.0
            nn.init.normal_(weight, std=0.02 * depth * shape.init_scale)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
