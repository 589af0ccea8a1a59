"""Four of the models in PyTorch, of the sizes of ``benchmarks.models``.

Nothing here imports TensorFlow. Weights and inputs are random; only time is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

Shape = tuple[int, ...]


class TorchModel(NamedTuple):
    """A network with what it is fed.

    Attributes:
      build: makes the network.
      inputs: shape of an example.
      targets: shape of what is to be guessed of an example; () is one class number.
      words: how many numbers of words there are in the inputs; 0 if they are floats.
      classes: how many there are.
    """

    build: Callable[[], nn.Module]
    inputs: Shape
    targets: Shape
    words: int
    classes: int

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of so many examples."""
        shape = (size, *self.inputs)
        x = torch.randint(self.words, shape) if self.words else torch.randn(shape)
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        return x, torch.randint(self.classes, (size, *self.targets))


class _Bottleneck(nn.Module):
    """Three convolutions beside what they are added to."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.branch = nn.Sequential(
            *_convolution(channels, width, 1, stride),
            nn.ReLU(),
            *_convolution(width, width, 3),
            nn.ReLU(),
            *_convolution(width, wide, 1),
        )
        is_same = stride == 1 and channels == wide
        self.shortcut = nn.Sequential(
            *(() if is_same else _convolution(channels, wide, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


def _convolution(
    channels: int, width: int, side: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, side, stride, padding=side // 2)
    return convolution, nn.BatchNorm2d(width)


def _resnet50() -> nn.Module:
    parts = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            parts.append(_Bottleneck(channels, width, 1 if number else stride))
            channels = 4 * width
    parts += nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
    return nn.Sequential(*parts).to(memory_format=torch.channels_last)


class _Bert(nn.Module):
    """Four post-norm layers of width 512 with a word head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, 512)
        self.positions = nn.Embedding(128, 512)
        self.normalization = nn.LayerNorm(512)
        layers = (
            nn.TransformerEncoderLayer(512, 8, 2048, 0.1, "gelu", batch_first=True)
            for _ in range(4)
        )
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(512, 8000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.normalization(self.words(x) + self.positions.weight)
        hidden = functional.dropout(hidden, 0.1, self.training)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


class _Lstm(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 512)
        self.layers = nn.LSTM(512, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 2000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layers(self.words(x))
        logits: torch.Tensor = self.head(hidden)
        return logits


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1024, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, 1000),
    )


TORCH_MODELS = {
    "resnet50": TorchModel(_resnet50, (3, 128, 128), (), 0, 1000),
    "bert": TorchModel(_Bert, (128,), (128,), 8000, 8000),
    "lstm": TorchModel(_Lstm, (35,), (35,), 2000, 2000),
    "mlp": TorchModel(_mlp, (1024,), (), 0, 1000),
}
