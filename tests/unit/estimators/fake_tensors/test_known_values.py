"""Fake tensors whose values are known, because they follow from the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.fake_tensors.fake_detection import hiding_fakes
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import (
    LARGEST_ELEMENTS,
    LARGEST_GIVEN_ELEMENTS,
    is_known,
    remember_values,
    run_with_known_values,
)


class Knowing(TorchDispatchMode):
    """Runs every operator as the recorder does."""

    def __init__(self, fakes: TraceFakeMode) -> None:
        super().__init__()
        self._fakes = fakes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_with_known_values(func, args, kwargs or {}, fakes=self._fakes)


@pytest.fixture
def fakes() -> TraceFakeMode:
    return TraceFakeMode()


def learned(fakes: TraceFakeMode, real: torch.Tensor) -> torch.Tensor:
    fake = fakes.from_tensor(real)
    remember_values([fake], [real])
    return fake


def test_a_model_may_ask_whether_a_mask_hides_anything(fakes: TraceFakeMode) -> None:
    mask = learned(fakes, torch.tensor([[1, 1, 1], [1, 1, 0]]))
    with fakes, Knowing(fakes):
        assert not torch.all(mask == 1)
        assert torch.all(mask[:1] == 1)
        assert mask.sum(dim=1).max().item() == 3


def test_what_a_mask_selects_has_as_many_rows_as_the_mask_says(fakes: TraceFakeMode) -> None:
    mask = learned(fakes, torch.tensor([True, False, True, True]))
    with fakes, Knowing(fakes):
        assert torch.empty(4, 512)[mask].shape == (3, 512)
        assert mask.nonzero().shape == (3, 1)


def test_a_layer_that_is_rarely_dropped_is_kept(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        assert not torch.rand([]) < 0.1


def test_of_several_sizes_of_images_the_last_and_largest_is_drawn(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        assert int(torch.empty(1).uniform_(0.0, 3.0).item()) == 2


def test_values_of_activations_stay_unknown(fakes: TraceFakeMode) -> None:
    mask = learned(fakes, torch.tensor([1, 0]))
    with fakes, Knowing(fakes), pytest.raises(DataDependentOutputException):
        (torch.empty(2) * mask).sum().item()


def test_large_inputs_are_not_kept(fakes: TraceFakeMode) -> None:
    large = learned(fakes, torch.zeros(LARGEST_ELEMENTS + 1, dtype=torch.long))
    with fakes, Knowing(fakes), pytest.raises(DataDependentOutputException):
        large[0].item()


def test_overlaps_of_boxes_with_many_anchors_are_known(fakes: TraceFakeMode) -> None:
    boxes, anchors = (learned(fakes, torch.arange(float(count))) for count in (3, LARGEST_ELEMENTS))
    with fakes, Knowing(fakes):
        overlaps = (boxes[:, None] - anchors).abs()  # larger than any whole numbers that are kept
        assert (overlaps < 1).any(dim=0).sum().item() == 3
        assert (overlaps < 1).nonzero().shape == (3, 2)


def test_numbers_that_code_writes_down_are_known(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        ranges = torch.tensor([[0.0, 64.0], [64.0, 128.0]])
        assert (torch.empty(2).new_tensor([32.0, 32.0]) < ranges[:, 1]).tolist() == [True, True]
        assert (ranges >= 64).nonzero().shape == (3, 2)


def test_images_of_the_batch_tell_which_of_them_are_empty(fakes: TraceFakeMode) -> None:
    images = torch.stack([torch.zeros(LARGEST_ELEMENTS), torch.ones(LARGEST_ELEMENTS)])
    fake = fakes.from_tensor(images)
    remember_values([fake], [images], largest_elements=LARGEST_GIVEN_ELEMENTS)
    with fakes, Knowing(fakes):
        are_empty = (fake.view(4, -1) == 0).sum(dim=1) == LARGEST_ELEMENTS // 2
        assert are_empty.tolist() == [True, True, False, False]
        assert fake.view(4, -1)[~are_empty].shape == (2, LARGEST_ELEMENTS // 2)


def test_of_a_large_tensor_no_larger_one_is_computed(fakes: TraceFakeMode) -> None:
    numbers = torch.arange(LARGEST_ELEMENTS + 1)
    fake = fakes.from_tensor(numbers)
    remember_values([fake], [numbers], largest_elements=LARGEST_GIVEN_ELEMENTS)
    with fakes, Knowing(fakes):
        assert is_known(fake + 1)
        assert not is_known(torch.cat([fake, fake]))


def test_boxes_of_the_batch_say_which_anchors_they_cover(fakes: TraceFakeMode) -> None:
    boxes = learned(fakes, torch.tensor([[0.5, 2.5]]))
    with fakes, Knowing(fakes):
        anchors = torch.cat([torch.arange(4, dtype=torch.float32), torch.linspace(0, 1, 3)])
        assert torch.where((anchors > boxes[:, 0]) & (anchors < boxes[:, 1]))[0].shape == (3,)  # 1, 2 and 1


def test_points_of_the_batch_fill_as_many_cells_as_they_do(fakes: TraceFakeMode) -> None:
    points = learned(fakes, torch.tensor([0.1, 0.4, 1.2, 3.9]))
    with fakes, Knowing(fakes):
        assert torch.unique(points.floor().long()).shape == (3,)


def test_a_value_changed_in_place_is_followed(fakes: TraceFakeMode) -> None:
    counter = learned(fakes, torch.tensor([3]))
    with fakes, Knowing(fakes):
        counter.add_(1)
        assert counter.item() == 4


def test_a_value_overwritten_with_an_unknown_one_is_forgotten(fakes: TraceFakeMode) -> None:
    counter = learned(fakes, torch.tensor([3]))
    with fakes, Knowing(fakes):
        counter.copy_(torch.empty(1))
        with pytest.raises(DataDependentOutputException):
            counter.item()


def test_numbers_are_presumed_to_be_finite(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        unknown = torch.empty(2, LARGEST_ELEMENTS)
        assert not torch.isnan(unknown).any()
        assert not torch.isinf(unknown).any()
        assert torch.isfinite(unknown[0, 0])
        with pytest.raises(DataDependentOutputException):
            bool((unknown[0, 0] == unknown[1, 0]).item())


def test_what_is_presumed_of_every_number_may_be_written_over(fakes: TraceFakeMode) -> None:
    """As ``nanmean`` does, which counts where ``isnan`` is not true."""
    with fakes, Knowing(fakes):
        finite = torch.isnan(torch.empty(4)).logical_not_()
        assert not is_known(finite)
        assert torch.empty(4).nanmean().shape == ()


def test_the_parts_of_a_known_tensor_are_known(fakes: TraceFakeMode) -> None:
    lengths = learned(fakes, torch.tensor([3, 1, 2]))
    with fakes, Knowing(fakes):
        assert torch.arange(2, 5).tolist() == [2, 3, 4]
        assert [each.item() for each in lengths] == [3, 1, 2]
        assert lengths.sort().values.tolist() == [1, 2, 3]
        assert lengths.max(dim=0).indices.item() == 0


def test_numbers_that_the_code_writes_down_are_known(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        sides = torch.tensor([240, 320])
        scale = torch.min(600 / torch.min(sides).to(torch.float32), 1000 / torch.max(sides).to(torch.float32))
        assert round(scale.item(), 3) == 2.5


def test_counters_that_are_raised_together_are_followed(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        counters = [torch.tensor(0.0), torch.tensor(4.0)]
        torch._foreach_add_(counters, 1)
        assert [each.item() for each in counters] == [1.0, 5.0]
        torch._foreach_add_(counters, [torch.empty(()), torch.empty(())])
        with pytest.raises(DataDependentOutputException):
            counters[0].item()


def test_a_tensor_of_the_users_own_is_never_written_to(fakes: TraceFakeMode) -> None:
    table = torch.tensor([1, 2])
    with fakes, Knowing(fakes):
        assert table.detach().add_(1).tolist() == [2, 3]
    assert table.tolist() == [1, 2]


def test_what_code_writes_down_is_known_of_any_type(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        assert torch.ones(2, 3).sum() == 6
        choices = torch.tensor([[0, 1], [1, 2]])
        assert torch.zeros(2, 3).scatter(1, choices, 1.0).long().sum(0).tolist() == [1, 2, 1]


def test_zeros_that_computed_values_are_written_into_are_not_known(fakes: TraceFakeMode) -> None:
    with fakes, Knowing(fakes):
        sums = torch.zeros(3)
        sums += torch.empty(3).exp()
        with pytest.raises(DataDependentOutputException):
            bool(sums[0])


def test_a_tensor_is_made_of_known_numbers_in_fake_tensors(fakes: TraceFakeMode) -> None:
    whole, broken, truth = (learned(fakes, torch.tensor(number)) for number in (3, 0.5, True))
    with fakes, Knowing(fakes), hiding_fakes():
        assert torch.tensor([whole, 4]).tolist() == [3, 4]
        assert torch.tensor([broken]).tolist() == [0.5]
        assert torch.tensor([[truth], [False]]).tolist() == [[True], [False]]


def test_what_the_cpu_has_no_kernel_for_is_unknown(fakes: TraceFakeMode) -> None:
    video = learned(fakes, torch.ones(1, 1, 2, 2, 2, dtype=torch.bfloat16))
    with fakes, Knowing(fakes):
        pooled = torch.nn.functional.avg_pool3d(video, 2)
    assert pooled.shape == (1, 1, 1, 1, 1)
    assert is_known(video)
    assert not is_known(pooled)
    with pytest.raises(NotImplementedError):
        torch.nn.functional.avg_pool3d(torch.ones(1, 1, 2, 2, 2, dtype=torch.bfloat16), 2)


def test_a_view_of_known_values_may_repeat_them_beyond_what_is_computed(fakes: TraceFakeMode) -> None:
    levels = learned(fakes, torch.arange(LARGEST_ELEMENTS) % 2)
    with fakes, Knowing(fakes):
        of_each_image = levels.expand(5, -1)
        assert of_each_image[4, :8].unique().tolist() == [0, 1]
        assert not is_known(levels.expand(9, -1))


def test_a_mask_filled_with_numbers_that_the_code_writes_down_is_known(fakes: TraceFakeMode) -> None:
    mask = learned(fakes, torch.tensor([True, False]))
    with fakes, Knowing(fakes):
        filled = torch.where(mask, torch.zeros(()), -3.0)
        assert (filled < 0).any()
        assert filled.tolist() == [0.0, -3.0]
