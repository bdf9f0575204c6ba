"""Packed sequences, redone step by step: the same values and gradients as torch's own kernels, and their memory."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import remember_values
from memplan.estimators.lowering.packed_sequences import pack, pad

LENGTHS = torch.tensor([5, 3, 3, 1])


def results(packing: object, padding: object, *, batch_first: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 5, 2) if batch_first else (5, 4, 2)
    padded = torch.randn(shape, generator=generator, requires_grad=True)
    data, counts = packing(padded, LENGTHS, batch_first)
    again, lengths = padding(data * 2, counts, batch_first, -1.0, 7)
    (gradient,) = torch.autograd.grad((again * torch.arange(2.0)).sum(), padded)
    return [data, counts, again, lengths, gradient]


@pytest.mark.parametrize("batch_first", [True, False])
def test_values_and_gradients_are_those_of_torch(batch_first: bool) -> None:
    ours = results(pack, pad, batch_first=batch_first)
    theirs = results(torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence, batch_first=batch_first)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference)


def test_fake_sequences_whose_lengths_are_known_have_the_shapes_of_real_ones() -> None:
    fakes = TraceFakeMode()
    padded, lengths, unknown = (fakes.from_tensor(each) for each in (torch.zeros(4, 5, 512), LENGTHS, LENGTHS.clone()))
    remember_values([lengths], [LENGTHS])
    with fakes:
        data, counts = pack(padded, lengths, True)
        again, found = pad(data, counts, True, 0.0, 0)
        with pytest.raises(DynamicOutputShapeException):
            pack(padded, unknown, True)
    assert data.shape == (5 + 3 + 3 + 1, 512)
    assert again.shape == (4, 5, 512)
    assert (counts.shape, found.shape) == ((5,), (4,))
