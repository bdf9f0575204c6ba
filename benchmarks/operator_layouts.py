"""Where results of operators and their gradients lie, in memplan's traces beside PyTorch's own code for CUDA.

    python benchmarks/operator_layouts.py traced.json
    python benchmarks/cuda_stubs/run.py --card h100 benchmarks/operator_layouts.py --on-card laid.json
    python benchmarks/operator_layouts.py traced.json laid.json             # prints what differs

Needs a CUDA build of PyTorch, no card. Each operator is run on images in channels-last and on lines that were turned
round, in single precision and in bfloat16; its gradient twice, where the gradient of the result lies as the result does
and where it is contiguous.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

import memplan

if TYPE_CHECKING:
    from collections.abc import Callable

Operation = "Callable[[torch.Tensor], torch.Tensor]"
Strides = dict[str, list[list[int] | None]]

_CARD = "h100"
_SAMPLES, _CHANNELS, _SIDE = 2, 16, 8

_ON_ANYTHING: dict[str, Operation] = {
    **{
        name: getattr(functional, name)
        for name in (
            "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardtanh",
            "hardswish", "hardsigmoid", "leaky_relu", "logsigmoid", "tanhshrink", "softshrink", "hardshrink", "dropout",
            "alpha_dropout",
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "sin", "abs", "square", "sign", "nan_to_num",
        )
    },
    "rrelu": partial(functional.rrelu, training=True),
    "softmax": lambda values: values.softmax(1),
    "log_softmax": lambda values: values.log_softmax(1),
    "glu": lambda values: functional.glu(values, 1),
    "prelu": lambda values: functional.prelu(values, values.new_ones(_CHANNELS)),
    "add to contiguous": lambda values: values + values.detach().contiguous(),
    "add contiguous to": lambda values: values.detach().contiguous() + values,
    "product of mask": lambda values: values * (values > 0),
    "masked_fill": lambda values: values.masked_fill(values > 0, 0),
    "where": lambda values: torch.where(values > 0, values, 0.0),
    "clamp": lambda values: values.clamp(0, 1),
    "cumsum": lambda values: values.cumsum(1),
    "flip": lambda values: values.flip(-1),
    "roll": lambda values: values.roll(1, -1),
    "concatenation": lambda values: torch.cat([values, values], 1),
    "half of channels": lambda values: values[:, : _CHANNELS // 2] * 2,
    "mean over channels": lambda values: values.mean(1, keepdim=True),
    "largest channel": lambda values: values.amax(1, keepdim=True),
    "standardised": lambda values: (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True),
    "normalize": lambda values: functional.normalize(values, dim=1),
    "batch_norm": lambda values: functional.batch_norm(values, None, None, training=True),
    "group_norm": lambda values: functional.group_norm(values, 4),
    "instance_norm": functional.instance_norm,
    "mse_loss": lambda values: functional.mse_loss(values, values.detach(), reduction="none"),
    "smooth_l1_loss": lambda values: functional.smooth_l1_loss(values, values.detach(), reduction="none"),
    "huber_loss": lambda values: functional.huber_loss(values, values.detach(), reduction="none"),
    "l1_loss": lambda values: functional.l1_loss(values, values.detach(), reduction="none"),
    "bce_with_logits": lambda values: functional.binary_cross_entropy_with_logits(
        values, values.detach().sigmoid(), reduction="none"
    ),
}  # fmt: skip
_ON_IMAGES: dict[str, Operation] = {
    **{
        f"interpolate {mode}": partial(functional.interpolate, scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    **{
        f"pad {mode}": partial(functional.pad, pad=(1, 1, 1, 1), mode=mode)
        for mode in ("reflect", "replicate", "circular", "constant")
    },
    "max_pool2d": partial(functional.max_pool2d, kernel_size=2),
    "avg_pool2d": partial(functional.avg_pool2d, kernel_size=2),
    "lp_pool2d": partial(functional.lp_pool2d, norm_type=2, kernel_size=2),
    "adaptive_avg_pool2d": partial(functional.adaptive_avg_pool2d, output_size=4),
    "adaptive_max_pool2d": partial(functional.adaptive_max_pool2d, output_size=4),
    "max_unpool2d": lambda image: functional.max_unpool2d(
        *functional.max_pool2d(image, 2, return_indices=True), kernel_size=2
    ),
    "pixel_shuffle": partial(functional.pixel_shuffle, upscale_factor=2),
    "pixel_unshuffle": partial(functional.pixel_unshuffle, downscale_factor=2),
    "channel_shuffle": partial(functional.channel_shuffle, groups=4),
    "local_response_norm": partial(functional.local_response_norm, size=3),
    "conv2d": lambda image: functional.conv2d(image, image.new_ones(8, _CHANNELS, 3, 3)),
    "conv_transpose2d": lambda image: functional.conv_transpose2d(image, image.new_ones(_CHANNELS, 8, 2, 2), stride=2),
    "layer_norm of pixels": lambda image: functional.layer_norm(image.permute(0, 2, 3, 1), (_CHANNELS,)),
    "grid_sample": lambda image: functional.grid_sample(
        image, image.new_zeros(len(image), 4, 4, 2), align_corners=False
    ),
}


def all_strides(device: str) -> Strides:
    """Return the strides of each operator's result and of its two gradients, by operator, operand and type."""
    image = torch.full((_SAMPLES, _CHANNELS, _SIDE, _SIDE), 0.5, device=device)
    operands = {
        "image": (image.contiguous(memory_format=torch.channels_last), {**_ON_ANYTHING, **_ON_IMAGES}),
        "lines": (image.flatten(2).transpose(1, 2).contiguous().transpose(1, 2), _ON_ANYTHING),
    }
    found: Strides = {}
    for kind, (operand, operations) in operands.items():
        for dtype in (torch.float32, torch.bfloat16):
            for name, operation in operations.items():
                given = operand.detach().to(dtype).requires_grad_()
                found[f"{name} of {kind} in {dtype}"] = _strides_of(operation, given)
    return found


def _strides_of(operation: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> list[list[int] | None]:
    gradients = []
    for like in (torch.ones_like, partial(torch.ones_like, memory_format=torch.contiguous_format)):
        result = operation(given)
        (gradient,) = torch.autograd.grad(result, given, like(result))
        gradients.append(list(gradient.stride()))
    return [list(result.stride()), *gradients]


class RunsThemAll(nn.Module):
    """Runs every operator in its first forward pass, and writes where their results lay."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.path = path

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return something that depends on the weight."""
        if not self.path.exists():
            self.path.write_text(json.dumps(all_strides("cuda")), encoding="utf-8")
        return (batch * self.weight).sum()


def write_traced(path: Path) -> None:
    """Write the strides that a trace for a card has."""
    path.unlink(missing_ok=True)
    workload = memplan.Workload(
        model=partial(RunsThemAll, path.absolute()),
        batch=lambda size: torch.ones(size, 4),
        loss=lambda model, batch: model(batch),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    memplan.estimate(workload, recipe=memplan.Recipe(micro_batch_size=2), device=_CARD)


def main() -> None:
    """Write strides, or compare what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--on-card", action="store_true", help="on CUDA, which a stub stands for")
    options = parser.parse_args()
    if len(options.files) == 1:
        (path,) = options.files
        if options.on_card:
            path.write_text(json.dumps(all_strides("cuda")), encoding="utf-8")
        else:
            write_traced(path)
        return
    traced, laid = (json.loads(each.read_text(encoding="utf-8")) for each in options.files)
    for name in (each for each in laid if traced[each] != laid[each]):
        print(f"{name}: traced {traced[name]}, on CUDA {laid[name]}")
    print(f"{sum(traced[each] == laid[each] for each in laid)} of {len(laid)} agree, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
