"""Networks in PyTorch as users write them."""

import torch
from torch import nn


class Residual(nn.Module):
    """A block that normalizes by batch, with a convolution in its shortcut where shapes change."""

    def __init__(self, before, after, stride=1):
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.two, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        y = torch.relu_(self.norm1(self.one(x)))
        return torch.relu(self.norm2(self.two(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, input_shape, n_classes, *, width=4, dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], width, 3, padding=1)
        self.body = nn.Sequential(Residual(width, width), Residual(width, 2 * width, 2))
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(2 * width, n_classes)

    def forward(self, x):
        return self.head(self.drop(self.body(self.stem(x)).mean((2, 3))))


class Attention(nn.Module):
    """Patches with learnt places, self-attention, and weights that two layers share; no statistics."""

    def __init__(self, input_shape, num_classes, width=8):
        super().__init__()
        channels, height, _ = input_shape
        self.embed = nn.Linear(channels * input_shape[2], width)
        self.places = nn.Parameter(0.1 * torch.randn(1, height, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.mix, self.mix_again = nn.Linear(width, width), nn.Linear(width, width)
        self.mix_again.weight = self.mix.weight
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x):
        rows = self.embed(x.permute(0, 2, 1, 3).flatten(2)) + self.places
        rows = self.mix_again(torch.tanh(self.mix(self.layer(rows))))
        return self.head(self.norm(rows).mean(1))


class Pointed(nn.Module):
    """Half of it frozen, one parameter of no use, a constant buffer, a cumulative average, and `view` on its input."""

    def __init__(self, input_shape, n_classes):
        super().__init__()
        n = input_shape[0] * input_shape[1] * input_shape[2]
        self.frozen = nn.Linear(n, 12).requires_grad_(False)
        self.register_buffer("scale", torch.full((12,), 0.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.norm, self.head = nn.BatchNorm1d(12, momentum=None), nn.Linear(12, n_classes)

    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.frozen(x.view(len(x), -1))) * self.scale))


class Recurrent(nn.Module):
    def __init__(self, input_shape, n_classes):
        super().__init__()
        self.cells = nn.GRU(input_shape[0], 6, batch_first=True)
        self.head = nn.Linear(6, n_classes)

    def forward(self, x):
        return self.head(self.cells(x.flatten(2).transpose(1, 2))[0][:, -1])


class InPlace(nn.Module):
    """A part that writes to its input."""

    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return self.linear(x.mul_(2))


def row(n_classes, width: int = 5, *, input_shape):
    """A Sequential, which is cut: convolution, norm with dropout behind it, a lazy layer, and one that overwrites."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], width, 3).to(memory_format=torch.channels_last),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(width),
        nn.Dropout(0.0),
        nn.Flatten(),
        nn.LazyLinear(9),
        InPlace(9),
        nn.Tanh(),
        nn.Linear(9, n_classes),
    )


def twice(input_shape, n_classes):
    """A Sequential with one layer in two places, which cannot be cut."""
    again = nn.Linear(7, 7)
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), again, nn.ReLU(), again, nn.Linear(7, n_classes))


def plain(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, n_classes))


def dropping(n_classes):
    """A Sequential whose parts each drop half of what they give."""
    parts = [layer for _ in range(3) for layer in (nn.Linear(144, 144), nn.Dropout(0.5))]
    return nn.Sequential(nn.Flatten(), *parts, nn.Linear(144, n_classes))


def sparse(input_shape, n_classes):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, n_classes, sparse=True)

        def forward(self, x):
            return self.table((x.flatten(1)[:, 0] > 0).long())

    return Table()


def half(n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(144, n_classes, dtype=torch.float64))


def frozen(input_shape, n_classes):
    return ResNet(input_shape, n_classes).requires_grad_(False)


def overlapping(input_shape, n_classes):
    net = Attention(input_shape, n_classes)
    net.norm.bias.data = net.norm.weight.data
    return net


class Flagged(nn.Module):
    """A flag, and a counter, that the first pass in training sets."""

    def __init__(self, n_classes):
        super().__init__()
        self.head = nn.Linear(144, n_classes)
        self.register_buffer("seen", torch.tensor(False))
        self.register_buffer("n", torch.zeros(2, dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen.fill_(True)
            self.n += 3
        return self.head(x.flatten(1))


def expanded(n_classes):
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, n_classes))
    net[1].bias = nn.Parameter(torch.zeros(1).expand(n_classes))
    return net


class Detached(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.head = nn.Linear(144, n_classes)

    def forward(self, x):
        return self.head(x.flatten(1)).detach()


def two_outputs(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.GRU(144, n_classes, batch_first=True))


def too_few(input_shape, n_classes):
    return plain(input_shape, n_classes - 1)


def no_module():
    return [1, 2]


def wrong_shape():
    return nn.Sequential(nn.Conv2d(17, 3, 3), nn.Flatten(), nn.Linear(4, 5))


class Crooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(7, 5)

    def forward(self, x):
        return self.head(x.flatten(1))


def leaves():
    raise SystemExit(3)
