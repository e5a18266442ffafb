"""A loop in the style of nanoGPT, watched: the lines that end in `# +` are what Sonde adds.

Micro-batches, autocast, clipping, an estimate of the loss in evaluation mode, a checkpoint, and
`--resume`.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import sonde  # +

resume = "--resume" in sys.argv
max_iters, eval_interval, accumulation, batch_size, block_size, vocab = 20, 10, 4, 4, 16, 32
out = Path("out-nanogpt.pt")
torch.manual_seed(1337)
data = torch.arange(4096) * 7 % vocab


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, layers=2, width=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block_size, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())


def get_batch(step):
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(data) - block_size - 1, (batch_size,), generator=generator)
    rows = torch.stack([data[i : i + block_size + 1] for i in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = torch.stack([model(*get_batch(-1 - k)) for k in range(4)]).mean()
    model.train()
    return found


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
iter_num = 0
if resume:
    checkpoint = torch.load(out)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
options = {"name": "gpt", "resume": resume, "step": iter_num}  # +
watch = sonde.watch(model, optimizer, phases={"train": 5, "eval": 1}, **options)  # +
ctx = torch.autocast("cpu", dtype=torch.bfloat16)

while iter_num < max_iters:
    if iter_num % eval_interval == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
            },
            out,
        )
        print(f"step {iter_num}: val loss {estimate_loss():.4f}")
    for micro_step in range(accumulation):
        with ctx:
            loss = model(*get_batch(iter_num * accumulation + micro_step)) / accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    watch.log(loss=loss * accumulation)  # +
    iter_num += 1
watch.close()  # +
print(f"iter {iter_num}: loss {loss * accumulation:.4f}")
