"""The peak of a call and its gradients as the recorder has it, held against the CPU allocator's own events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import remember_values
from memplan.estimators.fake_tensors.plain_derivatives import install_plain_derivatives
from memplan.estimators.lowering.kernel_rules import host_kernels
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Component, Phase
from memplan.torch_releases import release_of
from memplan.units import KIB
from tests.host_allocations import AS_MEASURED, measured_peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SIDE = 64  # of tensors of 64 x 64 x 64, 1 MiB each
SMALL_BYTES = 4 * KIB  # norms of matrices and their like


@pytest.fixture(autouse=True, scope="module")
def _plain_derivatives() -> None:
    install_plain_derivatives()


def traced_peak_bytes(call: Call, values: torch.Tensor, others: torch.Tensor) -> int:
    recording, fakes = Recording(micro_batch_size=1), TraceFakeMode()
    ledger = StorageLedger(recording)
    recorder = OperatorRecorder(
        recording, ledger, ModulePaths(nn.Identity()), kernels=host_kernels(), host_copies=None, fakes=fakes
    )
    given = [fakes.from_tensor(each) for each in (values, others)]
    remember_values(given, [values, others])
    ledger.track_all(given, Component.INPUTS, module="", operator="given")
    with fakes, recorder:
        result = call(given[0].requires_grad_(), given[1])
        recording.phase = Phase.BACKWARD
        result.backward(torch.ones_like(result))
    return recording.peak_bytes - values.nbytes - others.nbytes


CALLS: dict[str, Call] = {
    "mean squared error": functional.mse_loss,
    "squared error of each element": lambda x, y: functional.mse_loss(x, y, reduction="none"),
    "smooth absolute error": functional.smooth_l1_loss,
    "entropy": lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "entropy of a learnt target": lambda x, y: functional.binary_cross_entropy(y.sigmoid(), x.sigmoid()),
    "entropy of logits": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "entropy of each logit": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"),
    "weighted entropy of logits": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y.sigmoid(), y.exp(), pos_weight=y[0, 0].exp()
    ),
    "entropy of logits with a learnt target": lambda x, y: functional.binary_cross_entropy_with_logits(y, x),
    "product of all": lambda x, _: x.prod(),
    "product along a dimension": lambda x, _: x.prod(1),
    "product along a dimension that is kept": lambda x, _: x.prod(-1, keepdim=True),
    "running product": lambda x, _: x.cumprod(-1),
    "product along a dimension of rectified values": lambda x, _: x.relu().prod(1),
    "product along a dimension of bounded values": lambda x, _: functional.relu6(x).prod(-1, keepdim=True),
    "count of a mask": lambda x, _: x.sum() / (x > 0).sum(),
    "running count of a mask": lambda x, _: x.sum() / (x > 0).cumsum(0).sum(),
    "sum in double precision": lambda x, _: x.sum(dtype=torch.float64),
    "mean in half precision": lambda x, y: x.sum() + y.bfloat16().mean(),
    "mean of half precision in single": lambda x, y: x.sum() + y.bfloat16().mean(dtype=torch.float32),
    "attention of batches": lambda x, y: functional.scaled_dot_product_attention(
        *3 * [x.view(64, 16, 4, 64).transpose(1, 2)]
    ).transpose(1, 2),
    "attention of steps": lambda x, y: (
        functional.scaled_dot_product_attention(*3 * [x.view(16, 64, 4, 64).permute(1, 2, 0, 3)])
        .permute(2, 0, 1, 3)
        .contiguous()
    ),
    "norm of complex numbers": lambda x, y: torch.linalg.vector_norm(torch.complex(x, y)),
    "roll along all dimensions": lambda x, _: x.roll((1, 1, 1), (0, 1, 2)),
    "roll of what lies otherwise": lambda x, _: x.transpose(0, 1).roll(1, 0),
    "logarithm of the sum of exponentials": lambda x, _: x.logsumexp(-1),
    "elements that are infinite": lambda x, _: x.sum() * torch.isinf(x.detach()).any(),
    "elements of a whole number that are infinite": lambda x, _: x.sum() * torch.isinf(x.detach().long()).any(),
    "softmax of rows that may be masked": lambda x, _: x.sum() + torch._safe_softmax(x.detach(), -1).sum(),
    "selection by a mask": lambda x, y: x[y > 0],
    "selection of rows by a mask": lambda x, y: x[y[:, :, 0] > 0],
    "selection of all that a mask shows": lambda x, y: x.masked_select(y > 0),
    "selection of all rows that a mask shows": lambda x, y: x.masked_select(y[:, :, :1] > 0),
    "scatter to where a mask shows": lambda x, y: y.masked_scatter(y > 0, x),
    "fill where a mask shows": lambda x, y: torch.index_put(x, (y > 0,), torch.tensor(1.0)),
    "batch normalisation": lambda x, _: functional.batch_norm(x, None, None, training=True),
    "instance normalisation": lambda x, _: functional.instance_norm(x),
    "variance and mean": lambda x, _: torch.add(*torch.var_mean(x, -1)),
    "one of the smallest": lambda x, _: x.kthvalue(3)[0],
    "product with a mask": lambda x, y: x * (y > 0),
    "sum with half precision": lambda x, y: x + y.bfloat16(),
    "largest along a dimension": lambda x, _: x.amax(0),
    "inverse of matrices": lambda x, y: x.sum() + torch.linalg.inv(y.view(16, 128, 128)).sum(),
    "singular values of matrices": lambda x, y: x.sum() + torch.linalg.svd(y)[0].sum(),
    "factors of matrices": lambda x, y: x.sum() + torch.linalg.lu(y)[0].sum(),
    "solutions by a factor": lambda x, y: x.sum() + torch.cholesky_solve(y, y).sum(),
    "distances of many to few": lambda x, y: x.sum() + torch.cdist(y.view(2048, 128), y.view(2048, 128)[:64]).sum(),
    "distances of few to many": lambda x, y: x.sum() + torch.cdist(y.view(2048, 128)[:64], y.view(2048, 128)).sum(),
    "bilinear form": lambda x, y: functional.bilinear(x[0], y[0], torch.ones(4, 64, 64, requires_grad=True)),
    "distance": lambda x, y: x.sum() + torch.dist(y, y),
    "exponential of matrices": lambda x, _: torch.linalg.matrix_exp(x),
    "convolution of what lies otherwise": lambda x, y: functional.conv1d(x.transpose(1, 2), y[:, :, :3]),
    "exponential of a matrix": lambda x, _: torch.linalg.matrix_exp(x[0]),
    "grid of coordinates": lambda x, y: (
        x.sum() + functional.affine_grid(y[0, :32, :3].reshape(16, 2, 3), [16, 1, 128, 128], align_corners=False).sum()
    ),
    "images made larger": lambda x, y: x.sum() + functional.interpolate(y.view(16, 16, 32, 32), scale_factor=2).sum(),
    "images made large": lambda x, y: x.sum() + functional.interpolate(y.view(16, 16, 32, 32), size=128).sum(),
    "images made smoothly larger": lambda x, y: (
        x.sum() + functional.interpolate(y.view(16, 16, 32, 32), size=64, mode="bilinear", antialias=True).sum()
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_peak_of_a_call_and_its_gradients_is_what_the_allocator_tells(call: Call) -> None:
    predicted, measured = peaks(call)
    assert predicted == pytest.approx(measured, abs=SMALL_BYTES)


@pytest.mark.skipif(
    release_of(torch.__version__) < (2, 13),
    reason="before, fake tensors have a formula of their own for zeros",
)
@pytest.mark.parametrize("rectified", [functional.relu, functional.relu6])
def test_a_running_product_with_zeros_takes_more(rectified: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with_zeros, measured = peaks(lambda x, _: rectified(x).cumprod(-1))
    without_zeros, _ = peaks(CALLS["running product"])
    assert with_zeros == pytest.approx(measured, rel=0.01)  # it is not computed in place
    assert with_zeros > 1.5 * without_zeros


@pytest.mark.parametrize("name", ["selection of all that a mask shows", "scatter to where a mask shows"])
def test_threads_that_share_a_selection_take_more(name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        predicted, measured = peaks(CALLS[name])
    finally:
        torch.set_num_threads(threads)
    assert predicted == pytest.approx(measured, abs=SMALL_BYTES)


IMAGES = (16, 16, 32, 32)  # 1 MiB
VOLUMES = (8, 8, 16, 16, 16)
RESAMPLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest": lambda x: functional.max_pool2d(x, 2),
    "averages": lambda x: functional.avg_pool2d(x, 2),
    "averages of regions": lambda x: functional.adaptive_avg_pool2d(x, 16),
    "largest of regions": lambda x: functional.adaptive_max_pool2d(x, 16),
    "mirrored": lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
    "repeated": lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"),
    "larger by cubes": lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "smoothly larger": lambda x: functional.interpolate(x, size=64, mode="bilinear", antialias=True),
    "smoothly larger by cubes": lambda x: functional.interpolate(x, size=64, mode="bicubic", antialias=True),
    "at given places": lambda x: functional.grid_sample(x, x.new_zeros(16, 32, 32, 2), align_corners=False),
}
OF_VOLUMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest": lambda x: functional.max_pool3d(x, 2),
    "averages": lambda x: functional.avg_pool3d(x, 2),
    "averages of regions": lambda x: functional.adaptive_avg_pool3d(x, 8),
    "largest of regions": lambda x: functional.adaptive_max_pool3d(x, 8),
    "mirrored": lambda x: functional.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"),
    "repeated": lambda x: functional.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    "larger": lambda x: functional.interpolate(x, scale_factor=2),
}


def laid_out(
    resample: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], layouts: tuple[str, str]
) -> tuple[int, int]:
    """Return both peaks of resampling images in one layout where what comes after reads them in another."""
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    of_image, of_gradient = (last if each == "last" else torch.contiguous_format for each in layouts)

    def call(values: torch.Tensor, _others: torch.Tensor) -> torch.Tensor:
        images = values.view(shape).contiguous(memory_format=of_image)
        return resample(images).contiguous(memory_format=of_gradient).square()

    return peaks(call)


LAYOUTS = [(first, second) for first in ("first", "last") for second in ("first", "last")]  # where channels lie


OF_SHAPES = {
    **{f"images, {name}": (call, IMAGES) for name, call in RESAMPLED.items()},
    **{f"volumes, {name}": (call, VOLUMES) for name, call in OF_VOLUMES.items()},
}


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(("resample", "shape"), OF_SHAPES.values(), ids=OF_SHAPES)
def test_images_are_resampled_in_any_layout(
    resample: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], layouts: tuple[str, str]
) -> None:
    predicted, measured = laid_out(resample, shape, layouts)
    assert predicted == pytest.approx(measured, abs=SMALL_BYTES)


def kernel(*shape: int) -> torch.Tensor:
    return torch.ones(SIDE, *shape, requires_grad=True)


CONVOLUTIONS: dict[str, Call] = {
    "whose result is put beside another": lambda x, y: torch.cat([functional.conv1d(x, kernel(SIDE, 3)), y], 2),
    "of many images, by one pixel": lambda x, _: functional.conv1d(x, kernel(SIDE, 1)),
    "of groups of two channels": lambda x, _: functional.conv1d(x, kernel(2, 3), groups=32),
    "of groups of four channels": lambda x, _: functional.conv1d(x, kernel(4, 3), groups=16),
    "of groups of eight channels": lambda x, _: functional.conv1d(x, kernel(8, 3), groups=8),
    "transposed, by one step": lambda x, _: functional.conv_transpose1d(x, kernel(SIDE, 3)),
}


@AS_MEASURED
@pytest.mark.parametrize("call", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_the_peak_of_a_convolution_and_its_gradients_is_what_the_allocator_tells(call: Call) -> None:
    predicted, measured = peaks(call)
    assert predicted == pytest.approx(measured, abs=SMALL_BYTES)


RECURRENCES: dict[str, Call] = {
    "step by step": lambda x, _: nn.LSTM(SIDE, SIDE)(x)[0],
    "batch-first": lambda x, _: nn.LSTM(SIDE, SIDE, batch_first=True)(x)[0].contiguous(),
    "whose last state is used": lambda x, _: nn.LSTM(SIDE, SIDE)(x)[1][0],
    "of rows that are padded": lambda x, _: nn.LSTM(512, 256)(x.view(64, 8, 512))[0],
    "in half precision": lambda x, _: nn.LSTM(SIDE, SIDE, dtype=torch.bfloat16)(x.bfloat16())[0],
}


@AS_MEASURED
@pytest.mark.parametrize("call", RECURRENCES.values(), ids=RECURRENCES)
def test_a_recurrent_layer_is_predicted_but_for_copies_of_its_states(call: Call) -> None:
    predicted, measured = peaks(call)
    assert predicted == pytest.approx(measured, rel=0.005)


def peaks(call: Call) -> tuple[int, int]:
    """Return what the recorder has and what the allocator tells."""
    values, others = (torch.randn(SIDE, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def step() -> None:
        result = call(values, others)
        result.backward(torch.ones_like(result))

    predicted = traced_peak_bytes(call, values, others)
    values.requires_grad_()
    step()
    values.grad = None
    return predicted, measured_peak_bytes(step)
