"""Compare the table of workspaces of convolutions with what cuDNN answers, for nets that the table does not know.

    python benchmarks/convolution_table.py [--calls 5000] [--generation 80 86]

Needs timm and cuDNN (`pip install 'memplan[cudnn]'`), no card. Each net is run on meta tensors at its own image size;
its convolutions, but those that nets of the table have too, are then asked about in random batches, for each pass.
Three in nine are asked about at other sizes of the image, too.

Then seven of the nets are traced, and their reserved peaks at five micro-batches compared: by the table, and asked.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from typing import TYPE_CHECKING

import cloudpickle
import torch
from convolution_choices import NETS, answered
from convolution_layers import Layer, layers_of
from truth_models import timm_classifier

from memplan.devices.cards import find_card
from memplan.estimators import estimate, trace_step
from memplan.estimators.cudnn.answered_traces import with_expected_workspaces
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Pass
from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import PickledWorkload, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.devices.cards import DeviceSpec
    from memplan.estimators.temporaries.convolutions import Convolution

_NETS = """
resnet34 resnet101 resnet152 resnext101_32x8d seresnext101_32x4d resnest14d res2net101_26w_4s skresnet18 resnetv2_101
wide_resnet101_2 resnet51q seresnet33ts ecaresnet101d vgg11 densenet169 xception71 hrnet_w40 hrnet_w48 dla102 dpn107
cspresnext50 cs3darknet_m cs3sedarknet_x mobilenetv2_140 mobilenetv2_050 mobilenetv4_conv_large mobileone_s1
efficientnet_b1 efficientnet_b3 tf_efficientnetv2_m tf_efficientnetv2_b0 gc_efficientnetv2_rw_t mnasnet_140 lcnet_150
repghostnet_100 ghostnet_130 rexnet_200 mixnet_m fbnetv3_b tinynet_b regnetx_016 regnety_064 regnety_120 regnetz_d8
regnetv_040 repvgg_b2 repvgg_b1g4 convnext_base convnext_femto convnext_xlarge nfnet_f1 nf_regnet_b1 gernet_s
ese_vovnet39b vovnet57a selecsls60 mobilevit_xs mobilevitv2_150 coatnet_nano_rw_224 maxvit_rmlp_nano_rw_256
efficientformer_l3 efficientformerv2_l poolformer_m36 fastvit_ma36 hgnetv2_b4 hgnet_small pvt_v2_b3 twins_svt_small
nextvit_base rdnet_small efficientvit_m5 efficientvit_b3 davit_small focalnet_small_lrf edgenext_base
inception_next_base xcit_small_12_p8_224 convmixer_1536_20 tresnet_l visformer_tiny levit_256 starnet_s4
mambaout_small
"""
_TRACED = ("resnet34", "resnet101", "vgg11", "mobilenetv2_140", "efficientnet_b1", "regnety_064", "convnext_femto")
_MICRO_BATCHES = (8, 16, 32, 64, 128)
_CARDS = {
    Generation.TURING: "rtx-2080-ti",
    Generation.SMALL_TURING: "t4",
    Generation.A100: "a100-80gb",
    Generation.AMPERE: "rtx-3090",
    Generation.ADA: "rtx-4090",
    Generation.HOPPER: "h100-80gb",
    Generation.BLACKWELL_OF_DATA_CENTRES: "b200",
    Generation.BLACKWELL: "rtx-5090",
}
_BATCHES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SIDES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.57, 0.5, 1.5)  # of an image, beside the net's own
_CLOSE, _FAR = 0.02, 0.03


def random_calls(known: list[Layer], count: int, dtype: str, *, channels_last: bool) -> Iterator[Convolution]:
    """Yield passes of convolutions that cuDNN runs; the same in every run."""
    draw = random.Random(0)  # noqa: S311 - not for secrets
    while count:
        layer, batch, factor, kernel = (draw.choice(each) for each in (known, _BATCHES, _SIDES, tuple(Pass)))
        call = layer.call(batch, layer.sides_scaled(factor), kernel, dtype, channels_last=channels_last)
        if call is not None and (channels_last or not layer.is_depthwise):
            count -= 1
            yield call


def row(calls: list[Convolution], generation: Generation) -> tuple[str, str]:
    """Return cuDNN's version, and how far the table agrees with it.

    Raises:
        SystemExit: cuDNN does not answer.
    """
    version, rows = answered(calls, generation)
    pairs = [(workspace_bytes(call, generation), told) for call, told in rows]
    close = sum(abs(expected - told) <= max(MIB, _CLOSE * told) for expected, told in pairs)
    told = sum(told for _, told in pairs)
    missed = sum(abs(expected - told) for expected, told in pairs)
    missing = sum(max(told - expected, 0) for expected, told in pairs)
    return version, (
        f"{len(pairs)} | {close / len(pairs):.0%} | {told / len(pairs) / MIB:.0f} MiB | "
        f"{missed / len(pairs) / MIB:.1f} MiB | {missing / len(pairs) / MIB:.1f} MiB"
    )


def reserved_row(device: DeviceSpec, precision: str) -> str:
    """Return how far the reserved peaks by the table are from those with cuDNN asked."""
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
        tabled = with_expected_workspaces(asked)
        for size in _MICRO_BATCHES:
            by_table, told = (estimate(each, micro_batch_size=size, device=device) for each in (tabled, asked))
            errors.append(by_table.peak_reserved_bytes / told.peak_reserved_bytes - 1)
    distances = sorted(abs(each) for each in errors)
    tail = distances[int(0.9 * len(distances))]
    under = sum(each < -_FAR for each in errors) / len(errors)
    return f"{len(errors)} | {statistics.median(distances):.1%} | {tail:.1%} | {under:.0%}"


def print_calls(generations: list[Generation], count: int) -> None:
    """Print how far the table agrees for single passes, one row for each generation, type and layout."""
    in_the_table = set(layers_of(NETS.split()))
    known = [layer for layer in layers_of(_NETS.split()) if layer not in in_the_table]
    print("| card | type, layout | calls | within 1 MiB or 2 % | mean answer | mean error | of this too little |")
    print("|---|---|---:|---:|---:|---:|---:|")
    version = ""
    for generation in generations:
        half = "bfloat16" if generation >= Generation.A100 else "float16"
        for dtype, channels_last in (("float32", False), (half, False), ("float32", True), (half, True)):
            calls = list(random_calls(known, count, dtype, channels_last=channels_last))
            version, cells = row(calls, generation)
            layout = "channels last" if channels_last else "channels first"
            print(f"| {_CARDS[generation]} | {dtype}, {layout} | {cells} |", flush=True)
    print(f"\n{len(known)} layers of {len(_NETS.split())} nets; cuDNN {version}")


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--generation", nargs="*", type=int, choices=list(map(int, _CARDS)), default=list(_CARDS))
    options = parser.parse_args()
    generations = list(map(Generation, options.generation))
    print_calls(generations, options.calls)
    print("\n| card | precision | runs | median error | 90 of 100 within | more than 3 % under |")
    print("|---|---|---:|---:|---:|---:|")
    for generation in generations:
        for precision in ("tf32", "bf16") if generation >= Generation.A100 else ("fp32", "fp16"):
            cells = reserved_row(find_card(_CARDS[generation]), precision)
            print(f"| {_CARDS[generation]} | {precision} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
