"""A trainer in the style of torchtitan, watched: the lines that end in `# +` are what Sonde adds.

Steps are numbered from 1. A checkpoint is a dict of objects with a state: the watch is one of them.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sonde  # +


@dataclass
class JobConfig:
    dim: int = 16
    n_layers: int = 3
    vocab_size: int = 32
    seq_len: int = 16
    local_batch_size: int = 4
    microbatches: int = 4
    steps: int = 20
    max_norm: float = 1.0
    checkpoint: Path = field(default_factory=lambda: Path("out-torchtitan.pt"))
    checkpoint_interval: int = 10


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        q, k, v = self.wqkv(self.attention_norm(x)).chunk(3, -1)
        x = x + self.wo(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.w2(nn.functional.silu(self.w1(self.ffn_norm(x))))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict(
            {str(i): TransformerBlock(config.dim) for i in range(config.n_layers)}
        )
        self.norm = nn.RMSNorm(config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h)
        return self.output(self.norm(h))

    def init_weights(self):
        for p in self.parameters():
            nn.init.trunc_normal_(p, std=0.02) if p.dim() > 1 else nn.init.ones_(p)


class Trainer:
    def __init__(self, config):
        self.config, self.step = config, 0
        torch.manual_seed(0)
        with torch.device("meta"):
            self.model = Transformer(config)
        self.model.to_empty(device="cpu")
        self.model.init_weights()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.states: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "trainer": self,
        }
        resume = "--resume" in sys.argv
        options = {"name": "titan", "resume": resume, "step": None if resume else 1}  # +
        self.states["sonde"] = sonde.watch(self.model, self.optimizer, every=5, **options)  # +
        if resume:
            saved = torch.load(config.checkpoint)
            for name, state in self.states.items():
                state.load_state_dict(saved[name])

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

    def batch(self, k):
        generator = torch.Generator().manual_seed(self.step * self.config.microbatches + k)
        shape = (self.config.local_batch_size, 1)
        starts = torch.randint(self.config.vocab_size, shape, generator=generator)
        return (starts + torch.arange(self.config.seq_len + 1) * 7) % self.config.vocab_size

    def train_step(self):
        self.optimizer.zero_grad()
        losses = []
        for k in range(self.config.microbatches):
            tokens = self.batch(k)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                scores.float().flatten(0, 1), tokens[:, 1:].flatten()
            )
            (loss / self.config.microbatches).backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
        self.optimizer.step()
        loss = torch.stack(losses).mean()
        self.states["sonde"].log(loss=loss)  # +
        return loss

    def train(self):
        while self.step < self.config.steps:
            self.step += 1
            loss = self.train_step()
            if self.step % self.config.checkpoint_interval == 0:
                saved = {name: state.state_dict() for name, state in self.states.items()}
                torch.save(saved, self.config.checkpoint)
                print(f"step: {self.step:2}  loss: {loss:.4f}")
        self.states["sonde"].close()  # +
        print(f"{self.step} steps")


Trainer(JobConfig()).train()
