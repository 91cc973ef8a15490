"""The models that `train.py` trains, what it asks of them, and how they learn. Put your own in their place."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute_later


class Scale(nn.Module):
    """Flattens samples and scales each feature, on the device: raw dtypes cross the bus."""

    def __init__(self, x):
        super().__init__()
        x = x.flatten(1).float()
        spread = x.std(0, correction=0) if len(x) > 1 else torch.ones_like(x[0])
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("spread", torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def forward(self, x):
        return (x.flatten(1).float() - self.mean) / self.spread


class Attention(nn.Module):
    def __init__(self, width, heads, sdpa):
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, width, sdpa):
        super().__init__()
        self.attention = Attention(width, max(1, width // 64), sdpa)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MlpBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return x + self.inside(x)


class Tokens(nn.Module):
    """Cuts a flat sample into equal pieces, filled up with zeros, and embeds each with its place."""

    def __init__(self, features, tokens, width):
        super().__init__()
        self.tokens = min(tokens, features)
        self.missing = -features % self.tokens
        self.embed = nn.Linear((features + self.missing) // self.tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(self.tokens, width))

    def forward(self, x):
        return self.embed(functional.pad(x, (0, self.missing)).unflatten(1, (self.tokens, -1))) + self.place


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Model(nn.Module):
    """Scale, embed, blocks, head."""

    def __init__(self, args, x, outputs):
        super().__init__()
        self.scale = Scale(x)
        features, is_mlp = x[0].numel(), args.model == "mlp"
        self.embed = nn.Linear(features, args.width) if is_mlp else Tokens(features, args.tokens, args.width)
        make = MlpBlock if is_mlp else lambda width: TransformerBlock(width, args.sdpa)
        self.blocks = nn.ModuleList(make(args.width) for _ in range(args.depth))
        self.head = nn.Sequential(nn.Identity() if is_mlp else Mean(), nn.LayerNorm(args.width))
        self.answer = nn.Linear(args.width, outputs)
        self.checkpointing = args.checkpointing

    def forward(self, x):
        x = self.embed(self.scale(x))
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = recompute_later(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.answer(self.head(x))


class Objective:
    """The loss, and a second figure that people can read: right answers, or the squared error in the target's unit."""

    def __init__(self, classes, y):
        self.classes = classes
        self.outputs = classes or y[0].numel()
        if classes is None:
            self.mean, self.spread = (float(value) for value in (y.double().mean(), y.double().std(correction=0)))
            self.spread = self.spread or 1.0

    def __call__(self, output, y):
        output = output.float()
        if self.classes:
            y = y.long().flatten()
            return functional.cross_entropy(output, y), (output.detach().argmax(1) == y).sum()
        loss = functional.mse_loss(
            output, (y.flatten(1) if y.ndim > 1 else y[:, None]).float().sub(self.mean) / self.spread
        )
        return loss, loss.detach() * len(y)

    def words(self, loss, second):
        """Say both figures; `second` is its sum divided by the rows."""
        if self.classes:
            return f"loss {loss:.4f}, {second:.1%} right"
        return f"loss {loss:.4f}, error {math.sqrt(second) * self.spread:.4g} (root mean square)"


def make_optimizer(args, model):
    """AdamW without decay on biases and norms, which have one axis."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, fused=args.fused)


def make_schedule(args, optimizer, steps):
    """Rise linearly, then fall along a cosine."""
    warmup = max(1, round(args.warmup_share * steps))

    def share(step):
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done))) if args.cosine else 1.0

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)
