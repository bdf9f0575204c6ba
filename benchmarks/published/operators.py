"""Single operators and small nets: the Liger-Kernel benchmark's plain PyTorch rows, and the WSShiro/vramexp notebooks.

Liger (github.com/linkedin/Liger-Kernel, ``all_benchmark_data.csv``; torch 2.4 to 2.8): ten times forward and backward
from a given slope, the graph retained, and gradients never cleared, so that the old ones live beside the new ones. The
norms' twins, with which the benchmark compares, are resident too; their weights are single precision, because the
scripts move them to the card without a type, and so is what they make of half-precision inputs. Rows of embeddings,
rotary embeddings and losses are not rebuilt: what their configurations say does not explain the constant part of what
was measured, or its inputs.

vramexp (github.com/WSShiro/vramexp; torch 2.0.1): SGD without momentum, cross entropy with dense targets.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from published.rows import Peak, Row, table
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from memplan.recipe import Recipe
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIGER_CARDS = {"A100-SXM4-80GB": "a100-80gb", "H100 PCIe": "h100-pcie"}
_BF16 = torch.bfloat16


class _GivenSlope(torch.autograd.Function):
    """A scalar whose backward pass hands a given slope to the tensor it was made from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, slope: torch.Tensor, hold: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(slope)
        ctx.dtype, ctx.hold = tensor.dtype, hold
        return tensor.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # Where the types differ, ``Engine::execute`` casts the slope that ``backward`` is given, and keeps the cast
        # until it returns (``torch/csrc/autograd/engine.cpp``).
        return ctx.hold(ctx.saved_tensors[0].to(ctx.dtype)), None, None


class OnInput(nn.Module):
    """A module beside its idle twin, for an input that is itself trained, and a slope: all resident."""

    def __init__(self, module: nn.Module, twin: nn.Module | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.twin = module, twin
        self.input = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.register_buffer("slope", torch.empty(shape, dtype=dtype))
        self.held: list[torch.Tensor] = []

    def forward(self, _samples: torch.Tensor) -> torch.Tensor:
        """Return the scalar to call backward on."""
        self.held.clear()
        with torch.autograd.graph.saved_tensors_hooks(self._hold, lambda kept: kept):  # as retain_graph=True does
            output = self._hold(self.module(self.input))
        return _GivenSlope.apply(output, self.slope, self._hold)

    def _hold(self, tensor: torch.Tensor) -> torch.Tensor:
        self.held.append(tensor)
        return tensor


class LlamaRMSNorm(nn.Module):
    """Llama's root-mean-square norm, as transformers writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise in single precision."""
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden.to(dtype)


class LlamaMLP(nn.Module):
    """Llama's gated feed-forward layer with a tanh-approximated GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Gate, and project back."""
        return self.down_proj(F.gelu(self.gate_proj(hidden), approximate="tanh") * self.up_proj(hidden))


def liger_rows() -> Iterator[Row]:
    """Yield the rows whose step holds a forward and a backward pass."""
    for cells in table("liger"):
        kernel, x = cells["kernel"], int(cells["x"])
        if cells["mode"] == "forward" or kernel not in _LIGER:
            continue
        yield Row(
            key=f"liger-{kernel}-{cells['mode']}-{x}",
            family="liger",
            model=f"{kernel} {cells['mode']} {x}",
            workload=functools.partial(_accumulating, functools.partial(_LIGER[kernel], x)),
            trace_key=f"liger {kernel} {x}",
            recipe=Recipe(micro_batch_size=2),
            device=LIGER_CARDS[cells["gpu"]],
            peak=Peak.ALLOCATED,
            measured_mib=float(cells["mib"]),
        )


def _accumulating(model: Callable[[], nn.Module]) -> Workload:
    return Workload(
        model=model,
        batch=torch.zeros,  # the tensors that count are the module's own
        loss=lambda model, samples: model(samples),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0, foreach=False),
        zero_grad_set_to_none=False,  # gradients stay
    )


def _layer_norm(width: int) -> nn.Module:
    return OnInput(nn.LayerNorm(width), nn.LayerNorm(width), (4096, width), torch.float32)


def _rms_norm(width: int) -> nn.Module:
    return OnInput(LlamaRMSNorm(width), LlamaRMSNorm(width), (2048, width), _BF16)


def _geglu(tokens: int) -> nn.Module:
    return OnInput(LlamaMLP(4096, 11008).to(_BF16), None, (8, tokens, 4096), _BF16)


_LIGER = {"layer_norm": _layer_norm, "rms_norm": _rms_norm, "geglu": _geglu}


def notebook_rows() -> Iterator[Row]:
    """Yield the notebooks' small nets; for two of them the reserved peak of the same step is known too."""
    for name, (make, size, classes, allocated, reserved) in _NOTEBOOK.items():
        for peak, measured in ((Peak.ALLOCATED, allocated), (Peak.RESERVED, reserved)):
            if measured is not None:
                yield Row(
                    key=f"vramexp-{name}-{peak}",
                    family="vramexp",
                    model=f"{name} ({peak})",
                    workload=functools.partial(_notebook_net, make, classes),
                    trace_key=f"vramexp {name}",
                    recipe=Recipe(micro_batch_size=size, precision="tf32"),
                    device="rtx-3090",  # not told; of that size
                    peak=peak,
                    measured_mib=measured,
                )


def volume_rows() -> Iterator[Row]:
    """Yield the notebooks' 3-D net, less what earlier models, cuBLAS's workspaces among it, had left resident."""
    yield Row(
        key="vramexp-unetr",
        family="vramexp",
        model="UNETR (allocated)",
        workload=_unetr,
        trace_key="vramexp UNETR",
        recipe=Recipe(micro_batch_size=8, precision="tf32"),
        device="rtx-3090",  # not told; of that size
        peak=Peak.ALLOCATED,
        measured_mib=3284.3,
        counts_blas_workspaces=False,
    )


def _notebook_net(make: Callable[[], nn.Module], classes: int | None) -> Workload:
    shape = (3, 224, 224) if classes is None else (classes,)
    return _against_dense_targets(make, (3, 224, 224), shape)


def _unetr() -> Workload:
    def make() -> nn.Module:
        from monai.networks.nets import UNETR

        return UNETR(in_channels=1, out_channels=2, img_size=(64, 64, 64), feature_size=16, hidden_size=768)

    return _against_dense_targets(make, (1, 64, 64, 64), (2, 64, 64, 64))


def _against_dense_targets(make: Callable[[], nn.Module], image: tuple[int, ...], target: tuple[int, ...]) -> Workload:
    kept: list[torch.Tensor] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        kept[:] = [model(batch[0])]  # as a variable of the notebook's loop does
        return F.cross_entropy(kept[0], batch[1])

    return Workload(
        model=make,
        batch=lambda size: (torch.zeros(size, *image), torch.zeros(size, *target)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def _same(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), *(layer() for layer in layers))


# net, micro-batch, classes (None: dense targets of the image's shape), MiB allocated, MiB reserved
_NOTEBOOK: dict[str, tuple[Callable[[], nn.Module], int, int | None, float, float | None]] = {
    "plain CNN": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(98568, 10)
        ), 128, 10, 530.9, 604.0,
    ),
    "Conv+BatchNorm": (_same(lambda: nn.BatchNorm2d(3)), 1000, None, 4019.5, 4034.0),
    "Conv": (_same(), 1000, None, 3445.0, None),
    "Conv+Conv": (_same(lambda: nn.Conv2d(3, 3, 3, padding=1)), 1000, None, 4020.0, None),
    "Conv+ReLU": (_same(lambda: nn.ReLU(inplace=True)), 1000, None, 3445.0, None),
    "Conv+Dropout": (_same(lambda: nn.Dropout(0.5)), 1000, None, 3589.0, None),
    "Conv+Softmax2d": (_same(nn.Softmax2d), 1000, None, 3445.0, None),
}  # fmt: skip
