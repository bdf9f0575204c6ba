"""Ask cuDNN about convolutions, and fit the table by which memplan tells its choices where it is not installed.

    python benchmarks/convolution_choices.py --calls 120000 --out memplan/estimators/temporaries/convolution_choices.npz
    python benchmarks/convolution_choices.py --calls 120000 --out a.npz --generation 90      # one generation alone

Needs timm, scikit-learn and cuDNN (`pip install 'memplan[cudnn]'`), no card. Two thirds of the calls are of
convolutions of timm's nets, as they are or with other channels and sides of the image; the others are made up: images,
volumes and lines of usual sizes, up-sampling, patches.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from convolution_layers import Layer, layers_of

from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_choices import ChoiceKey
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.workspace_forms import (
    FORMS,
    NUMBER_BYTES,
    WorkspaceForm,
    choice_figures,
    operand_numbers,
)
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from memplan.estimators.temporaries.convolutions import Convolution

NETS = """
resnet18 resnet50 wide_resnet50_2 resnext50_32x4d seresnext50_32x4d resnest26d res2net50_26w_4s skresnet34 resnetv2_50
vgg16 vgg19_bn densenet121 inception_v3 xception41 hrnet_w18 dla34 dpn68 cspdarknet53 mobilenetv2_100
mobilenetv3_large_100 efficientnet_b0 efficientnet_b4 tf_efficientnetv2_s mnasnet_100 lcnet_100 ghostnet_100 rexnet_100
mixnet_s regnetx_032 regnety_016 regnety_032 repvgg_b1 convnext_tiny nfnet_f0 gernet_m vovnet39a selecsls42b
mobilevit_s coatnet_0_rw_224 efficientformer_l1 poolformer_s12 convmixer_768_32 fastvit_t8 vit_base_patch16_224
swin_tiny_patch4_window7_224 pvt_v2_b2 inception_next_tiny nextvit_small rdnet_tiny
resnetv2_50x1_bit resnetrs50 resnest50d legacy_seresnet50 gcresnet50t ecaresnet50d resnet34d skresnext50_32x4d
res2next50 densenet201 inception_v4 inception_resnet_v2 xception65 hrnet_w32 dla60 dpn92 cspresnet50 darknet53
mobilenetv3_small_100 mobilenetv4_conv_medium efficientnet_b2 tf_efficientnetv2_b3 mnasnet_small semnasnet_100
hardcorenas_a fbnetc_100 spnasnet_100 tinynet_a regnetx_008 regnety_008 regnetz_c16 repvgg_a2 convnextv2_tiny
convnext_small nf_resnet50 nf_regnet_b0 eca_nfnet_l0 dm_nfnet_f1 gernet_l ese_vovnet19b_dw selecsls60b mobilevitv2_100
coatnet_1_rw_224 maxvit_tiny_rw_224 efficientformerv2_s1 poolformerv2_s12 convmixer_1024_20_ks9_p14 fastvit_sa12
repvit_m1 edgenext_small ghostnetv2_100 hgnet_tiny hgnetv2_b2 levit_128 focalnet_tiny_srf pvt_v2_b1 crossvit_15_240
twins_pcpvt_small cait_xxs24_224 visformer_small tresnet_m efficientvit_b1 tiny_vit_5m_224 starnet_s2 mambaout_tiny
resnet18d rexnet_150 vgg13 vgg11_bn bat_resnext26ts botnet26t_256 halonet26t lambda_resnet26t sebotnet33ts_256
seresnextaa101d_32x8d efficientnet_lite0 mixnet_l mobilenetv1_100 lcnet_050 inception_next_small pit_s_224 volo_d1_224
xcit_tiny_12_p16_224 davit_tiny nest_tiny coat_lite_tiny convit_tiny
"""
_FEW_CHANNELS = 4  # of photographs
_LARGE_WEIGHT = 4_000_000  # numbers
_WEIGHT_OF_GROUPS = 5  # few nets have them, and they vary more
_ASKED_AT_ONCE = 3_000
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_FEW_AT_ONCE = (1, 2, 4, 8, 16, 32)  # volumes
_SIDES = (*(1.0,) * 9, 0.57, 0.5, 1.5)  # of an image, beside the net's own
_CHANNELS = (
    *(1, 3, 4, 8, 12, 16, 24, 32, 32, 40, 48, 64, 64, 64, 80, 96, 112, 128, 128, 128, 144, 160, 192, 224, 256, 256),
    *(256, 288, 320, 384, 448, 512, 512, 512, 576, 640, 768, 960, 1024, 1024, 1280, 1536, 1920, 2048),
)
_IMAGE_SIDES = (7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512)
_LONG_SIDES = (49, 100, 128, 256, 500, 512, 1000, 1024, 2048, 4096, 8000, 16000, 32000)
_DEPTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
# Windows with their steps: of images, of lines, of volumes.
_WINDOWS = (
    *(((3, 3), (1, 1)), ((3, 3), (1, 1)), ((3, 3), (2, 2)), ((1, 1), (1, 1)), ((1, 1), (1, 1)), ((1, 1), (2, 2))),
    *(((2, 2), (2, 2)), ((4, 4), (2, 2)), ((4, 4), (4, 4)), ((5, 5), (1, 1)), ((7, 7), (1, 1)), ((7, 7), (2, 2))),
    *(((16, 16), (16, 16)), ((14, 14), (14, 14)), ((8, 8), (8, 8)), ((1, 7), (1, 1)), ((7, 1), (1, 1))),
)
_LINE_WINDOWS = tuple(
    ((1, width), (1, step)) for width, step in ((1, 1), (3, 1), (3, 2), (5, 1), (7, 1), (10, 5), (15, 1))
)
_VOLUME_WINDOWS = (
    *(((3, 3, 3), (1, 1, 1)), ((3, 3, 3), (1, 1, 1)), ((3, 3, 3), (2, 2, 2)), ((1, 1, 1), (1, 1, 1))),
    *(((1, 3, 3), (1, 1, 1)), ((3, 1, 1), (1, 1, 1)), ((1, 3, 3), (1, 2, 2)), ((3, 7, 7), (1, 2, 2))),
    *(((2, 2, 2), (2, 2, 2)), ((5, 7, 7), (1, 2, 2)), ((1, 1, 1), (2, 2, 2)), ((1, 7, 7), (1, 2, 2))),
)
_LEAST_IN_A_BRANCH, _MOST_BRANCHES, _LEAST_SHARE = 4, 1500, 1 / 5000
_WEIGHT_BEYOND = 0.1
_ALL_OPERANDS = FORMS.index(WorkspaceForm(image=True, weight=True, output=True))
_CLOSE = 0.02


class Draw:
    """Draws convolutions; the same ones in every run."""

    def __init__(self, known: list[Layer], seed: int) -> None:
        self._known = known
        self._weights = [
            (1 + math.prod(layer.weight_shape) / _LARGE_WEIGHT) * (_WEIGHT_OF_GROUPS if layer.is_in_groups else 1)
            for layer in known
        ]
        self._random = random.Random(seed)  # noqa: S311 - not for secrets

    def calls(self, count: int, dtype: str, *, channels_last: bool) -> Iterator[Convolution]:
        """Yield passes of convolutions."""
        while count:
            layer, sides, batches = self._random.choices(
                (self._of_a_net, self._varied, self._image, self._line, self._volume), (40, 25, 18, 7, 10)
            )[0]()
            if layer.is_depthwise and not channels_last and dtype == "float32":
                continue  # PyTorch runs a kernel of its own
            kernel = self._random.choice(tuple(Pass))
            batch = self._random.choice(batches) if self._random.random() < 0.5 else self._batch_up_to(batches[-1])
            call = layer.call(batch, sides, kernel, dtype, channels_last=channels_last)
            if call is not None:
                count -= 1
                yield call

    def _batch_up_to(self, most: int) -> int:
        return round(math.exp(self._random.uniform(0, math.log(most))))

    def _known_layer(self) -> Layer:
        """Draw a net's layer, more often one in groups, or with a large weight, which a net has one or two of."""
        return self._random.choices(self._known, self._weights)[0]

    def _of_a_net(self) -> tuple[Layer, tuple[int, ...], tuple[int, ...]]:
        layer, factor = self._known_layer(), self._random.choice(_SIDES)
        return layer, layer.sides_scaled(factor), _BATCHES

    def _varied(self) -> tuple[Layer, tuple[int, ...], tuple[int, ...]]:
        """A net's layer with other channels and other sides, mostly square."""
        layer, factor = self._known_layer(), math.exp(self._random.uniform(-0.7, 0.7))
        factors = [factor if self._random.random() < 0.8 else math.exp(self._random.uniform(-0.7, 0.7)) for _ in "ab"]
        sides = tuple(max(round(side * each), 1) for side, each in zip(layer.sides, factors, strict=True))
        groups, read, made = self._other_channels(layer)
        shape = (groups * made, read, *layer.weight_shape[2:])
        return Layer(groups * read, sides, shape, layer.stride, layer.padding, layer.dilation), sides, _BATCHES

    def _other_channels(self, layer: Layer) -> tuple[int, int, int]:
        """Draw how many groups there are, and what channels each of them reads and makes."""
        read, made = layer.weight_shape[1], layer.weight_shape[0] // layer.groups
        if layer.groups == 1:
            return 1, (read if read <= _FEW_CHANNELS else self._near(read)), self._near(made)
        groups = max(round(layer.groups * self._random.choice((0.5, 0.75, 1, 1, 1.5, 2))), 2)
        if layer.is_depthwise:
            return groups, read, made
        near = self._near(read)
        return groups, near, (near if made == read else self._near(made))

    def _near(self, channels: int) -> int:
        if self._random.random() < 0.4:
            return channels
        step, factor = (
            self._random.choice((1, 4, 8, 8, 16, 16, 32, 64)),
            self._random.choice((0.5, 0.75, 1, 1.25, 1.5, 2, 3)),
        )
        return max(step, round(channels * factor / step) * step)

    def _image(self) -> tuple[Layer, tuple[int, ...], tuple[int, ...]]:
        side = self._random.choice(_IMAGE_SIDES)
        sides = (side, side if self._random.random() < 0.7 else self._random.choice(_IMAGE_SIDES))
        return self._made_up(_WINDOWS, sides), sides, _BATCHES

    def _line(self) -> tuple[Layer, tuple[int, ...], tuple[int, ...]]:
        sides = (1, self._random.choice(_LONG_SIDES))
        return self._made_up(_LINE_WINDOWS, sides), sides, _BATCHES

    def _volume(self) -> tuple[Layer, tuple[int, ...], tuple[int, ...]]:
        side = self._random.choice(_IMAGE_SIDES)
        sides = (self._random.choice(_DEPTHS), side, side)
        return self._made_up(_VOLUME_WINDOWS, sides), sides, _FEW_AT_ONCE

    def _made_up(self, windows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], sides: tuple[int, ...]) -> Layer:
        window, stride = self._random.choice(windows)
        gap = (
            self._random.choice((2, 4))
            if set(window) == {3} and max(stride) == 1 and self._random.random() < 0.1
            else 1
        )
        is_padded = max(stride) == 1 or window[-1] not in {stride[-1], 8, 14, 16}
        padding = tuple((width - 1) // 2 * gap if is_padded else 0 for width in window)
        read, made = self._random.choice(_CHANNELS), self._random.choice(_CHANNELS)
        groups = self._random.choice((1,) * 12 + (2, 4, 32, read)) if read == made else 1
        shape = (made, read // groups if read % groups == 0 else read, *window)
        return Layer(read, sides, shape, stride, padding, (gap,) * len(window))


def answered(calls: list[Convolution], generation: Generation) -> tuple[str, list[tuple[Convolution, int]]]:
    """Return cuDNN's version, and the calls that it answers with their workspaces in bytes.

    Raises:
        SystemExit: cuDNN does not answer.
    """
    version, found = "", []
    capability, sm_count = generation.described
    for start in range(0, len(calls), _ASKED_AT_ONCE):
        asked = tuple(calls[start : start + _ASKED_AT_ONCE])
        answers = ask(CudnnQuestions(capability=capability, sm_count=sm_count, convolutions=asked))
        if not isinstance(answers, CudnnAnswers):
            raise SystemExit(answers)
        version = answers.version
        found += [(call, told) for call, told in zip(asked, answers.workspace_bytes, strict=True) if told is not None]
    return version, found


def bytes_of_forms(calls: list[Convolution]) -> npt.NDArray[np.float64]:
    """Return the workspaces of some calls by each form, shape (calls, forms)."""
    samples = np.array([call.samples for call in calls], dtype=np.float64)
    sizes = np.array([NUMBER_BYTES[call.dtype] for call in calls], dtype=np.float64)

    @cache
    def operands(step: int, *, by_eight_groups: bool) -> tuple[npt.NDArray[np.float64], ...]:
        form = WorkspaceForm(by_eight_groups=by_eight_groups)
        numbers = [operand_numbers(form.made_at_once(call), step) for call in calls]
        return tuple(np.array(numbers, dtype=np.float64).T)

    def of_form(form: WorkspaceForm) -> Any:
        if form.transform is not None:
            return [form.bytes_of(call) for call in calls]
        numbers = operands(form.channel_step, by_eight_groups=form.by_eight_groups)
        copied, summed = form.numbers_of(numbers, samples)
        return copied * sizes + summed * 4

    return np.array([of_form(form) for form in FORMS], dtype=np.float64).T


Branch = list[tuple[int, float, int]]  # of each node: a figure's number or -1, a value, where the second branch begins


def fitted(rows: list[tuple[Convolution, int]]) -> Branch:
    """Fit a tree to answers: the form nearest to them in each branch, errors as shares of all operands.

    Beyond all of these an error counts by its logarithm alone, so that the tree does not follow a few large answers.
    """
    from sklearn.tree import DecisionTreeRegressor

    calls = [call for call, _ in rows]
    told = np.array([told for _, told in rows], dtype=np.float64)
    forms = bytes_of_forms(calls)
    operands = forms[:, _ALL_OPERANDS] + MIB
    shares = np.abs(forms - told[:, None]) / operands[:, None]
    errors = np.minimum(shares, 1.0) + _WEIGHT_BEYOND * np.log(np.maximum(shares, 1.0))
    counts = Counter(errors.argmin(axis=1).tolist())
    kept = sorted(number for number, count in counts.items() if count >= len(rows) * _LEAST_SHARE)
    figures = np.array([choice_figures(call) for call, _ in rows], dtype=np.float32)
    fit = DecisionTreeRegressor(min_samples_leaf=_LEAST_IN_A_BRANCH, max_leaf_nodes=_MOST_BRANCHES, random_state=0)
    return _branch(fit.fit(figures, errors[:, kept]).tree_, 0, kept)


def _branch(tree: Any, node: int, forms: list[int]) -> Branch:
    """Return a node with both its branches; as one end where these end alike."""
    if tree.children_left[node] < 0:
        return [(-1, forms[int(tree.value[node][:, 0].argmin())], 0)]
    first, second = (_branch(tree, each[node], forms) for each in (tree.children_left, tree.children_right))
    if len(first) == len(second) == 1 and first == second:
        return first
    moved = [(figure, value, begins + 1 if figure >= 0 else 0) for figure, value, begins in first]
    begins = 1 + len(first)
    moved_second = [(figure, value, at + begins if figure >= 0 else 0) for figure, value, at in second]
    return [(int(tree.feature[node]), float(tree.threshold[node]), begins), *moved, *moved_second]


def share_of_some_form(rows: list[tuple[Convolution, int]]) -> float:
    """Return how many answers are what some form comes to."""
    told = np.array([told for _, told in rows], dtype=np.float64)
    missed = np.abs(bytes_of_forms([call for call, _ in rows]) - told[:, None]).min(axis=1)
    return float(np.mean(missed <= np.maximum(MIB, _CLOSE * told)))


def trees_of(generation: Generation, known: list[Layer], count: int) -> Iterator[tuple[str, Branch]]:
    """Ask about one generation of cards and fit its trees."""
    half = "bfloat16" if generation >= Generation.A100 else "float16"
    for dtype in ("float32", half):
        for channels_last in (False, True):
            drawn = count // 2 if channels_last else count  # of these cuDNN answers more slowly
            calls = list(Draw(known, seed=1).calls(drawn, dtype, channels_last=channels_last))
            _, rows = answered(calls, generation)
            print(f"{len(rows)} answers, {share_of_some_form(rows):.1%} of some form", flush=True)
            for kernel in Pass:
                of_kernel = [(call, told) for call, told in rows if call.kernel is kernel]
                key = str(ChoiceKey.of(of_kernel[0][0], generation))
                branch = fitted(of_kernel)
                ends = sum(figure < 0 for figure, _, _ in branch)
                print(f"{key}: {ends} branches", flush=True)
                yield key, branch


def main() -> None:
    """Fit what is missing, and write the table after each generation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=120_000)
    parser.add_argument(
        "--generation",
        nargs="*",
        type=int,
        choices=[int(each) for each in Generation if each >= Generation.TURING],
        default=[int(each) for each in Generation if each >= Generation.TURING],
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    branches: dict[str, Branch] = {}
    known = layers_of(NETS.split())
    print(f"{len(known)} layers", flush=True)
    started = time.perf_counter()
    for generation in map(Generation, options.generation):
        branches.update(trees_of(generation, known, options.calls))
        write(branches, options.out)
        print(
            f"{generation.name} after {time.perf_counter() - started:.0f} s: {options.out.stat().st_size:,} bytes",
            flush=True,
        )


def write(branches: dict[str, Branch], path: Path) -> None:
    """Write trees as ``memplan.estimators.temporaries.convolution_choices`` reads them."""
    nodes = np.dtype([("figure", "i1"), ("value", "<f4"), ("second", "<i2")])
    np.savez_compressed(path, **{key: np.array(branch, dtype=nodes) for key, branch in branches.items()})


if __name__ == "__main__":
    main()
