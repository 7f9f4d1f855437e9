"""Networks in plain PyTorch whose steps are measured (:data:`MODELS`), each with the shape of its input."""

from typing import Any


def lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def mlp() -> Any:
    """Return a network of 23 MB, little of it computed on."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 10))


def resnet18() -> Any:
    """Return the network of He et al. (2016), table 1, in its form for small images: 45 MB."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inward: int, out: int, stride: int):
            super().__init__()
            self.main = nn.Sequential(
                *(nn.Conv2d(inward, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
                *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
            )
            same = stride == 1 and inward == out
            self.short = nn.Identity() if same else nn.Conv2d(inward, out, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.main(x) + self.short(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for inward, out, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(inward, out, stride), Block(out, out, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "lenet": (lenet, (1, 28, 28)),
    "mlp": (mlp, (1, 28, 28)),
    "resnet18": (resnet18, (3, 32, 32)),
}
