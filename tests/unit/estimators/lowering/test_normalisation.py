"""What normalisation of an input in another order of dimensions keeps for its backward pass on a card."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.fake_tensors import plain_derivatives
from memplan.estimators.lowering import normalisation
from memplan.estimators.lowering.normalisation import batch_norm, group_norm, renorm, rms_norm, rms_norm_backward


def saved_input(image: torch.Tensor, *, cudnn: bool = True, affine: bool = True) -> torch.Tensor:
    weight, bias = (torch.ones(image.shape[1], requires_grad=True) if affine else None for _ in range(2))
    made: Any = batch_norm(image.requires_grad_(), weight, bias, None, None, True, 0.1, 1e-5, cudnn)
    saved: torch.Tensor = made.grad_fn._saved_input
    return saved


def transposed(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(4, 6, 8, dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cudnn_keeps_a_contiguous_copy(dtype: torch.dtype) -> None:
    image = transposed(dtype)
    saved = saved_input(image)
    assert saved.is_contiguous()
    assert saved.data_ptr() != image.data_ptr()


@pytest.mark.parametrize("image", [torch.zeros(4, 6, 8), torch.zeros(4, 5, 6, 8).permute(0, 3, 1, 2)])
def test_what_is_contiguous_or_channels_last_is_kept_as_it_is(image: torch.Tensor) -> None:
    assert saved_input(image).data_ptr() == image.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(torch.bfloat16, {}), (torch.float32, {"cudnn": False}), (torch.float32, {"affine": False})],
)
def test_atens_own_kernel_reads_any_order(dtype: torch.dtype, options: dict[str, bool]) -> None:
    image = transposed(dtype)
    assert saved_input(image, **options).data_ptr() == image.data_ptr()


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_keeps_and_answers_what_is_contiguous(*, affine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "TORCH_RELEASE", (2, 14))
    image = torch.rand(2, 8, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.rand(8) if affine else None for _ in range(2))
    made: Any = group_norm(image, 2, weight, bias)
    saved = made.grad_fn._saved_input
    assert made.is_contiguous()
    assert saved.is_contiguous()
    assert saved.data_ptr() != image.data_ptr()
    torch.testing.assert_close(made, torch.group_norm(image, 2, weight, bias))


def test_from_2_15_on_group_norm_keeps_and_answers_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "TORCH_RELEASE", (2, 15))
    image = torch.rand(2, 8, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    made: Any = group_norm(image, 2)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert made.grad_fn._saved_input.data_ptr() == image.data_ptr()


def test_root_mean_squares_are_divided_by_in_one_kernel_that_keeps_one_number_a_row() -> None:
    values, weight = torch.rand(4, 6, 8, dtype=torch.bfloat16, requires_grad=True), torch.rand(8, dtype=torch.bfloat16)
    made: Any = rms_norm(torch.rms_norm, values, [8], weight.requires_grad_())
    kept, of_weight, deviations = made.grad_fn.saved_tensors
    assert (kept.data_ptr(), of_weight.data_ptr()) == (values.data_ptr(), weight.data_ptr())
    assert (deviations.shape, deviations.dtype) == ((4, 6, 1), torch.float32)


@pytest.mark.parametrize("affine", [True, False])
def test_gradients_of_root_mean_squares_are_those_of_one_kernel(*, affine: bool) -> None:
    with FakeTensorMode():
        values = torch.empty(6, 4, 8).transpose(0, 1).requires_grad_()
        weight = torch.empty(8, requires_grad=True) if affine else None
        made: Any = rms_norm(torch.rms_norm, values, [8], weight)
        made.sum().backward()
    assert values.grad is not None
    assert (weight is None) or weight.grad is not None
    of_values, of_weight = rms_norm_backward(made, values, [8], made, weight, [True, affine])
    assert of_values.is_contiguous()
    assert (of_weight is None) is (weight is None)


@pytest.mark.parametrize(
    ("values", "weight"),
    [(torch.rand(4, 8), torch.rand(8).bfloat16()), (torch.rand(2, 8, 4, 6).permute(0, 3, 1, 2), None)],
)
def test_other_types_of_weights_and_channels_last_are_composed(
    values: torch.Tensor, weight: torch.Tensor | None
) -> None:
    composed: Any = rms_norm(lambda *given: given, values, [values.shape[-1]], weight)
    assert composed == (values, [values.shape[-1]], weight, None)


@pytest.mark.parametrize("dim", [0, -1])
def test_limited_norms_have_the_derivative_of_autograd(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(4, 6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (expected,) = torch.autograd.grad(values.renorm(2, dim, 2.5).square().sum(), values)
    monkeypatch.setattr(plain_derivatives, "FakeTensor", torch.Tensor)  # answer plain tensors, too, which have values
    limited = renorm(torch.renorm, values, 2.0, dim, 2.5)
    assert type(limited.grad_fn).__name__ == "_RenormBackward"
    torch.testing.assert_close(torch.autograd.grad(limited.square().sum(), values)[0], expected)


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)])
def test_limited_norms_are_summed_in_single_precision(dtype: torch.dtype, kept: torch.dtype) -> None:
    class Products(TorchDispatchMode):
        dtypes: ClassVar[set[torch.dtype]] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **kwargs or {})
            if func.overloadpacket is torch.ops.aten.div:
                self.dtypes.add(result.dtype)
            return result

    with FakeTensorMode() as mode, Products() as products:
        values = mode.from_tensor(torch.rand(4, 6, dtype=dtype)).requires_grad_()
        renorm(torch.renorm, values, 2.0, 0, 1.0).sum().backward()
        assert values.grad is not None
    assert products.dtypes == {kept}
