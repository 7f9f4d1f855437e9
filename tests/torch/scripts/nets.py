"""Small networks that the scripts train."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        self.head = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, x):
        return self.head(self.features(x))


class Checkpointed(LeNet):
    """Computes its middle again in a backward pass within the backward pass."""

    def forward(self, x):
        return self.head(checkpoint(self.features[3:], self.features[:3](x), use_reentrant=True))


class Branches(nn.Module):
    """Has one branch that is not always taken, and one that never is."""

    def __init__(self):
        super().__init__()
        self.always = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU())
        self.sometimes, self.never, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x, more):
        x = self.always(x)
        return self.head(self.sometimes(x) if more else x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = (nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = self.norm_one(self.one(x)).relu()
        return (x + self.norm_two(self.two(y))).relu()


class ResNet(nn.Module):
    def __init__(self, width=8, blocks=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()),
            *(nn.Linear(144, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)),
        )


class Layer(nn.Module):
    """A layer of a transformer, written out so that its parts can be sharded by name."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.norm_one(x)
        q, k, v = (
            f(y).view(batch, length, -1, x.shape[-1] // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm_two(x))))


class Transformer(nn.Module):
    """A language model, whose embedding is its output's weights, too, if they are tied."""

    def __init__(self, words=64, width=32, heads=4, layers=2, *, sparse=False, tied=True, checkpointing=False):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(words, width, sparse=sparse), nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.checkpointing = checkpointing
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.output(self.norm(x))
