"""Ten small models of different kinds for the search benchmark; plain PyTorch, nothing is downloaded.

Sizes are chosen so that a sample takes some 10 to 40 MiB of a training step and a step less than a second on one core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

import memplan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Attention(nn.Module):
    """Self-attention with its matrices spelled out, followed by a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixing, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mix tokens of shape (batch, tokens, width)."""
        mixed = self.mixing(self.norms[0](tokens)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (mixed[0] @ mixed[1].transpose(-1, -2)).softmax(-1)
        tokens = tokens + self.out((weights @ mixed[2]).transpose(1, 2).flatten(2))
        return tokens + self.perceptron(self.norms[1](tokens))


class UNet(nn.Module):
    """Two levels down, two up, with skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(nn.Conv2d, 3, width), _block(nn.Conv2d, width, 2 * width)])
        self.middle = _block(nn.Conv2d, 2 * width, 2 * width)
        self.up = nn.ModuleList([_block(nn.Conv2d, 4 * width, width), _block(nn.Conv2d, 2 * width, 1)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one value for every pixel."""
        fine = self.down[0](images)
        coarse = self.down[1](F.max_pool2d(fine, 2))
        lifted = F.interpolate(self.middle(F.max_pool2d(coarse, 2)), scale_factor=2)
        lifted = F.interpolate(self.up[0](torch.cat([coarse, lifted], 1)), scale_factor=2)
        return self.up[1](torch.cat([fine, lifted], 1))


class WordModel(nn.Module):
    """Next-word prediction with more words than width."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(words, width), Attention(width, 4), nn.Linear(width, words)

    def forward(self, drawn: torch.Tensor) -> torch.Tensor:
        """Return the scores of every word after every token."""
        return self.head(self.block(self.embedding(drawn)))


class Recommender(nn.Module):
    """A large table of embeddings below a small perceptron: much that does not follow the batch."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(items, width)
        self.perceptron = nn.Sequential(*_perceptron(width, 5))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """Score items of shape (batch, items)."""
        return self.perceptron(self.table(items))


class Graph(nn.Module):
    """Message passing over dense adjacency matrices."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, edges_and_nodes: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Pass messages along every edge, once a layer."""
        edges, nodes = edges_and_nodes
        for layer in self.layers:
            nodes = F.relu(layer(F.normalize(edges * edges.sigmoid(), p=1, dim=-1) @ nodes))
        return nodes


def _block(kind: Callable[..., nn.Module], inputs: int, outputs: int, **settings: Any) -> nn.Sequential:
    norm = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}[kind]
    return nn.Sequential(kind(inputs, outputs, 3, padding=1, **settings), norm(outputs), nn.ReLU())


def _perceptron(width: int, depth: int) -> Iterable[nn.Module]:
    return [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]


def _convolutions(kind: Callable[..., nn.Module], channels: int, width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(_block(kind, channels, width), *(_block(kind, width, width) for _ in range(depth - 1)))


def _separable(width: int, depth: int) -> nn.Sequential:
    pairs = (
        (_block(nn.Conv2d, width, width, groups=width), nn.Conv2d(width, width, 1), nn.Hardswish())
        for _ in range(depth)
    )
    return nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), *(layer for pair in pairs for layer in pair))


def _normal(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randn(size, *shape, generator=torch.Generator().manual_seed(0))


def _drawn(limit: int, *shape: int) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randint(0, limit, (size, *shape), generator=torch.Generator().manual_seed(0))


def _workload(
    name: str,
    model: Callable[[], nn.Module],
    batch: Callable[[int], Any],
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
) -> Callable[[Any], memplan.Workload]:
    def make(_config: Any) -> memplan.Workload:
        return memplan.Workload(
            name=name,
            model=model,
            batch=batch,
            loss=loss or (lambda model, batch: model(batch).square().mean()),
            optimizer=optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)),
        )

    return make


def _next_word(model: nn.Module, drawn: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(drawn).flatten(0, 1), drawn.flatten())


def _momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


perceptron = _workload("perceptron", lambda: nn.Sequential(*_perceptron(64, 10)), _normal(4096, 64))
convolutions = _workload(
    "convolutions", lambda: _convolutions(nn.Conv2d, 3, 8, 5), _normal(3, 224, 224), optimizer=_momentum
)
unet = _workload("unet", lambda: UNet(8), _normal(3, 256, 256))
attention = _workload("attention", lambda: nn.Sequential(*(Attention(64, 8) for _ in range(3))), _normal(256, 64))
words = _workload("words", lambda: WordModel(8192, 64), _drawn(8192, 256), loss=_next_word)
audio = _workload("audio", lambda: _convolutions(nn.Conv1d, 1, 8, 5), _normal(1, 65536), optimizer=_momentum)
volumes = _workload("volumes", lambda: _convolutions(nn.Conv3d, 1, 4, 4), _normal(1, 48, 48, 48))
separable = _workload("separable", lambda: _separable(16, 5), _normal(3, 320, 320))
graph = _workload("graph", lambda: Graph(32, 3), lambda size: (_normal(640, 640)(size), _normal(640, 32)(size)))
recommender = _workload("recommender", lambda: Recommender(150_000, 64), _drawn(150_000, 4096))

MODELS = {
    name: globals()[name]
    for name in (
        "perceptron", "words", "audio", "recommender", "separable", "convolutions", "unet", "attention", "volumes",
        "graph",
    )
}  # fmt: skip
