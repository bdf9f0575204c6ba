"""Compare the rule for workspaces of convolutions with what cuDNN answers, for convolutions of timm's nets.

    python benchmarks/convolution_rule.py [--calls 5000] [--capability 8.0 8.6]

Needs timm and cuDNN (`pip install 'memplan[cudnn]'`), no card. Each net is run on meta tensors at its own image size;
its convolutions are then asked about in random batches, for each pass. Three in nine are asked about at other sizes of
the image, too.

Then seven of the nets are traced, and their reserved peaks at five micro-batches compared: by the rule, and asked.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cloudpickle
import torch
from architectures import define_detection_operators
from torch import nn
from truth_models import timm_classifier

from memplan.devices.cards import find_card
from memplan.estimators import estimate, trace_step
from memplan.estimators.cudnn.answered_traces import with_ruled_workspaces
from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import PickledWorkload, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.devices.cards import DeviceSpec

_NETS = """
resnet18 resnet50 wide_resnet50_2 resnext50_32x4d seresnext50_32x4d resnest26d res2net50_26w_4s skresnet34 resnetv2_50
vgg16 vgg19_bn densenet121 inception_v3 xception41 hrnet_w18 dla34 dpn68 cspdarknet53 mobilenetv2_100
mobilenetv3_large_100 efficientnet_b0 efficientnet_b4 tf_efficientnetv2_s mnasnet_100 lcnet_100 ghostnet_100 rexnet_100
mixnet_s regnetx_032 regnety_016 regnety_032 repvgg_b1 convnext_tiny nfnet_f0 gernet_m vovnet39a selecsls42b
mobilevit_s coatnet_0_rw_224 efficientformer_l1 poolformer_s12 convmixer_768_32 fastvit_t8 vit_base_patch16_224
swin_tiny_patch4_window7_224 pvt_v2_b2 inception_next_tiny nextvit_small rdnet_tiny
"""
_TRACED = ("resnet18", "resnet50", "vgg11", "mobilenetv2_100", "efficientnet_b0", "regnety_032", "convnext_tiny")
_MICRO_BATCHES = (8, 16, 32, 64, 128)
_CARDS = {
    "7.5": "t4",
    "8.0": "a100-80gb",
    "8.6": "rtx-3090",
    "8.9": "rtx-4090",
    "9.0": "h100-80gb",
    "10.0": "b200",
    "12.0": "rtx-5090",
}
_BATCHES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SIDES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.57, 0.5, 1.5)  # of an image, beside the net's own
_MOST_BYTES = 8 << 30  # of one operand
_CLOSE, _FAR = 0.02, 0.03


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution of a net: the shape of its input without the batch, its weight, and its window."""

    channels: int
    sides: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def layers() -> list[Layer]:
    """Return the different convolutions of the nets, in two dimensions."""
    define_detection_operators()
    import timm

    found: dict[Layer, None] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], _output: object) -> None:
        assert isinstance(module, nn.Conv2d)  # noqa: S101 - only these are hooked
        if not isinstance(module.padding, str):
            windows = (module.stride, module.padding, module.dilation)
            found[Layer(inputs[0].shape[1], tuple(inputs[0].shape[2:]), tuple(module.weight.shape), *windows)] = None

    for name in _NETS.split():
        net = timm.create_model(name).to("meta")
        for module in net.modules():
            if type(module) is nn.Conv2d:
                module.register_forward_hook(note)
        net(torch.empty(2, *net.pretrained_cfg["input_size"], device="meta"))
    return list(found)


def random_calls(known: list[Layer], count: int, dtype: str, *, channels_last: bool) -> Iterator[Convolution]:
    """Yield passes of convolutions that cuDNN runs; the same in every run."""
    draw = random.Random(0)  # noqa: S311 - not for secrets
    while count:
        layer, batch, factor, kernel = (draw.choice(each) for each in (known, _BATCHES, _SIDES, tuple(Pass)))
        is_depthwise = layer.weight_shape[1] == 1 < layer.channels
        sides = tuple(max(round(side * factor), 1) for side in layer.sides)
        windows = zip(sides, layer.padding, layer.dilation, layer.weight_shape[2:], layer.stride, strict=True)
        made = tuple((side + 2 * pad - gap * (width - 1) - 1) // step + 1 for side, pad, gap, width, step in windows)
        shapes = (batch, layer.channels, *sides), (batch, layer.weight_shape[0], *made)
        most = max(torch.Size(each).numel() for each in shapes) * 4
        if min(made) < 1 or most > _MOST_BYTES or (is_depthwise and not channels_last):
            continue
        count -= 1
        yield Convolution(
            kernel=kernel,
            input_shape=shapes[0],
            weight_shape=layer.weight_shape,
            output_shape=shapes[1],
            dtype=dtype,
            channels_last=channels_last,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
        )


def row(calls: tuple[Convolution, ...], capability: tuple[int, int]) -> tuple[str, str]:
    """Return cuDNN's version, and how far the rule agrees with it.

    Raises:
        SystemExit: cuDNN does not answer.
    """
    answers = ask(CudnnQuestions(capability=capability, convolutions=calls))
    if not isinstance(answers, CudnnAnswers):
        raise SystemExit(answers)
    pairs = [
        (workspace_bytes(call, capability), told)
        for call, told in zip(calls, answers.workspace_bytes, strict=True)
        if told is not None
    ]
    close = sum(abs(ruled - told) <= max(MIB, _CLOSE * told) for ruled, told in pairs)
    told = sum(told for _, told in pairs)
    missed = sum(abs(ruled - told) for ruled, told in pairs)
    missing = sum(max(told - ruled, 0) for ruled, told in pairs)
    return answers.version, (
        f"{len(pairs)} | {close / len(pairs):.0%} | {told / len(pairs) / MIB:.0f} MiB | "
        f"{missed / len(pairs) / MIB:.1f} MiB | {missing / len(pairs) / MIB:.1f} MiB"
    )


def reserved_row(device: DeviceSpec, precision: str) -> str:
    """Return how far the reserved peaks by the rule are from those with cuDNN asked."""
    errors = []
    for name in _TRACED:
        parts = timm_classifier(name)
        workload = Workload(
            model=parts.model,
            batch=parts.batch,
            loss=parts.loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        )
        source = PickledWorkload(payload=cloudpickle.dumps(workload), fingerprint=name, search_path=tuple(sys.path))
        asked = trace_step(source, Recipe(micro_batch_size=_MICRO_BATCHES[0], precision=precision), device)
        ruled = with_ruled_workspaces(asked)
        for size in _MICRO_BATCHES:
            by_rule, told = (estimate(each, micro_batch_size=size, device=device) for each in (ruled, asked))
            errors.append(by_rule.peak_reserved_bytes / told.peak_reserved_bytes - 1)
    distances = sorted(abs(each) for each in errors)
    tail = distances[int(0.9 * len(distances))]
    under = sum(each < -_FAR for each in errors) / len(errors)
    return f"{len(errors)} | {statistics.median(distances):.1%} | {tail:.1%} | {under:.0%}"


def print_calls(capabilities: list[str], count: int) -> None:
    """Print how far the rule agrees for single passes, one row for each capability, type and layout."""
    known = layers()
    print("| capability | type, layout | calls | within 1 MiB or 2 % | mean answer | mean error | of this too little |")
    print("|---|---|---:|---:|---:|---:|---:|")
    version = ""
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        half = "bfloat16" if major >= 8 else "float16"  # Ampere, the first with bfloat16
        for dtype, channels_last in (("float32", False), (half, False), ("float32", True), (half, True)):
            calls = tuple(random_calls(known, count, dtype, channels_last=channels_last))
            version, cells = row(calls, (major, minor))
            layout = "channels last" if channels_last else "channels first"
            print(f"| {capability} | {dtype}, {layout} | {cells} |", flush=True)
    print(f"\n{len(known)} layers of {len(_NETS.split())} nets; cuDNN {version}")


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--capability", nargs="*", choices=_CARDS, default=list(_CARDS))
    options = parser.parse_args()
    print_calls(options.capability, options.calls)
    print("\n| capability | precision | runs | median error | 90 of 100 within | more than 3 % under |")
    print("|---|---|---:|---:|---:|---:|")
    for capability in options.capability:
        for precision in ("fp32", "fp16") if capability == "7.5" else ("tf32", "bf16"):
            cells = reserved_row(find_card(_CARDS[capability]), precision)
            print(f"| {capability} | {precision} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
