"""Where results of operators lie on a card, as PyTorch's own code for CUDA laid them out on stubs."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.fake_tensors.fake_results import corrected_result
from tests.tensors import in_channels_last

ATEN = torch.ops.aten
IMAGE = in_channels_last(torch.ones(2, 8, 4, 4))
PLAIN = torch.ones(2, 8, 4, 4)
PLACES = in_channels_last(torch.zeros(2, 8, 4, 4, dtype=torch.int64))


def named(value: object) -> str:
    return str(value) if isinstance(value, torch._ops.OpOverloadPacket) else "with"


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (ATEN.pixel_shuffle, (IMAGE, 2)),
        (ATEN.pixel_unshuffle, (IMAGE, 2)),
        (ATEN.replication_pad2d, (IMAGE, [1, 1, 1, 1])),
        (ATEN.max_unpool2d, (IMAGE, PLACES, [8, 8])),
        (ATEN.rrelu_with_noise, (IMAGE, torch.zeros_like(IMAGE), 0.1, 0.3, True)),
        (ATEN.glu_backward, (IMAGE[:, :4], IMAGE, 1)),
        (ATEN.mse_loss_backward, (IMAGE, IMAGE, IMAGE, 0)),
        (ATEN.smooth_l1_loss_backward, (IMAGE, IMAGE, IMAGE, 0, 1.0)),
        (ATEN.huber_loss_backward, (IMAGE, IMAGE, IMAGE, 0, 1.0)),
    ],
    ids=named,
)
def test_some_results_are_contiguous_whatever_they_are_made_of(operator: object, args: tuple[object, ...]) -> None:
    expected = operator.default(*args)
    found = corrected_result(operator.default, args, on_host=False)
    assert found.is_contiguous()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_losses_between_images_do_so_on_the_host_too() -> None:
    for operator, rest in ((ATEN.mse_loss_backward, ()), (ATEN.huber_loss_backward, (1.0,))):
        args = (IMAGE, IMAGE, IMAGE, 0, *rest)
        assert operator.default(*args).is_contiguous()  # by the kernel itself
        assert corrected_result(operator.default, args, on_host=True).is_contiguous()
    assert corrected_result(ATEN.pixel_shuffle.default, (IMAGE, 2), on_host=True) is None


@pytest.mark.parametrize(("gradient", "activated"), [(PLAIN, IMAGE), (IMAGE, PLAIN), (IMAGE, IMAGE)])
@pytest.mark.parametrize(
    ("operator", "rest"),
    [
        (ATEN.hardtanh_backward, (0.0, 6.0)),
        (ATEN.hardswish_backward, ()),
        (ATEN.hardsigmoid_backward, ()),
        (ATEN.softplus_backward, (1.0, 20.0)),
        (ATEN.logit_backward, ()),
    ],
    ids=named,
)
def test_gradients_of_activations_lie_as_those_of_their_results(
    operator: object, rest: tuple[float, ...], gradient: torch.Tensor, activated: torch.Tensor
) -> None:
    found = corrected_result(operator.default, (gradient, activated, *rest), on_host=False)
    assert found.stride() == gradient.stride()
    assert found.stride() == operator.default(gradient, activated, *rest).stride()  # as the same iterator has it here


def test_a_gradient_that_is_one_number_everywhere_lies_as_what_was_activated() -> None:
    spread = torch.ones(()).expand(PLAIN.shape)
    found = corrected_result(ATEN.elu_backward.default, (spread, 1.0, 1.0, 1.0, False, IMAGE), on_host=False)
    assert found.stride() == IMAGE.stride()
