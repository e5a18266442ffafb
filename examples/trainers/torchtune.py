"""A recipe in the style of torchtune, watched: the lines that end in `# +` are what Sonde adds.

Low-rank adapters are trained, the rest is frozen. Losses count tokens; gradients are scaled before
they are clipped.
"""

import torch
from torch import nn

import sonde  # +

CONFIG = {
    "model": {"vocab": 32, "width": 16, "layers": 2, "rank": 4},
    "epochs": 2,
    "max_steps_per_epoch": 10,
    "gradient_accumulation_steps": 4,
    "clip_grad_norm": 1.0,
}


class LoRALinear(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.lora_a = nn.Linear(width, rank, bias=False)
        self.lora_b = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


class Layer(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.up, self.down = LoRALinear(width, rank), LoRALinear(width, rank)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build(vocab, width, layers, rank):
    body = [Layer(width, rank) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(vocab, width), *body, nn.Linear(width, vocab))


class Recipe:
    def setup(self, cfg):
        torch.manual_seed(0)
        self.cfg, self.global_step = cfg, 0
        self.model = build(**cfg["model"])
        self.model[0].requires_grad_(False)
        self.model[-1].requires_grad_(False)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-2)
        self.watch = sonde.watch(self.model, self.optimizer, every=5, name="recipe")  # +

    def batches(self, epoch):
        n = self.cfg["max_steps_per_epoch"] * self.cfg["gradient_accumulation_steps"]
        for k in range(n):
            generator = torch.Generator().manual_seed(epoch * n + k)
            tokens = torch.randint(self.cfg["model"]["vocab"], (4, 12), generator=generator)
            yield tokens, (tokens * 3 + 1) % self.cfg["model"]["vocab"]

    def train(self):
        running_loss, num_tokens = torch.zeros(()), 0
        for epoch in range(self.cfg["epochs"]):
            for idx, (tokens, labels) in enumerate(self.batches(epoch)):
                logits = self.model(tokens)
                loss = nn.functional.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), reduction="sum"
                )
                running_loss, num_tokens = running_loss + loss.detach(), num_tokens + labels.numel()
                loss.backward()
                if (idx + 1) % self.cfg["gradient_accumulation_steps"]:
                    continue
                for p in self.model.parameters():
                    if p.grad is not None:
                        p.grad /= num_tokens
                nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg["clip_grad_norm"])
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                self.watch.log(loss=running_loss / num_tokens)  # +
                self.global_step += 1
                if self.global_step % 5 == 0:
                    print(f"{epoch}|{self.global_step}|loss: {running_loss / num_tokens:.4f}")
                running_loss, num_tokens = torch.zeros(()), 0

    def cleanup(self):
        print(f"{self.global_step} steps")
        self.watch.close()  # +


recipe = Recipe()
recipe.setup(CONFIG)
recipe.train()
recipe.cleanup()
