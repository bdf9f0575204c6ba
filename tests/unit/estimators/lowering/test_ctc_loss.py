"""The loss of sequence alignment on a card: shapes of torch's own, and what its backward pass takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.fake_results import corrected_result
from memplan.estimators.fake_tensors.known_values import remember_values
from memplan.estimators.lowering.ctc_loss import ctc_loss

ALIGN = torch.ops.aten._ctc_loss.Tensor
STEPS, SAMPLES, CLASSES = 20, 2, 7
LENGTHS = torch.tensor([5, 3])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_its_shape_is_that_of_torchs_own(reduction: str) -> None:
    log_probs = torch.zeros(STEPS, SAMPLES, CLASSES).log_softmax(-1)
    targets = torch.ones(SAMPLES, 5, dtype=torch.long)
    steps = torch.full((SAMPLES,), STEPS)
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    ours = ctc_loss(log_probs, targets, steps, LENGTHS, 0, number, True)
    assert ours.shape == nn.functional.ctc_loss(log_probs, targets, steps, LENGTHS, reduction=reduction).shape


def test_every_step_keeps_a_variable_for_each_label_of_the_longest_target_and_the_gaps_around() -> None:
    log_probs = torch.zeros(STEPS, SAMPLES, CLASSES, requires_grad=True)
    loss = ctc_loss(log_probs, torch.ones(8), [STEPS] * SAMPLES, LENGTHS.tolist(), reduction=0)
    assert loss.grad_fn.saved_tensors[2].shape == (SAMPLES, STEPS, 2 * 5 + 1)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    assert gradient.shape == log_probs.shape


def test_lengths_that_nobody_knows_are_as_long_as_padded_targets_allow() -> None:
    fakes = TraceFakeMode()
    given = torch.zeros(STEPS, SAMPLES, CLASSES), torch.ones(SAMPLES, 9), torch.ones(14), LENGTHS, LENGTHS.clone()
    log_probs, padded, joined, known, unknown = (fakes.from_tensor(each) for each in given)
    log_probs.requires_grad_()
    remember_values([known], [LENGTHS])
    with fakes:
        kept = [ctc_loss(log_probs, padded, known, each, reduction=0) for each in (known, unknown)]
        with pytest.raises(DynamicOutputShapeException):
            ctc_loss(log_probs, joined, known, unknown)
    assert [each.grad_fn.saved_tensors[2].shape[-1] for each in kept] == [2 * 5 + 1, 2 * 9 + 1]


def test_on_the_host_lengths_that_are_known_tell_the_shapes_of_torchs_own() -> None:
    real = torch.zeros(STEPS, SAMPLES, CLASSES).log_softmax(-1), torch.ones(SAMPLES, 9, dtype=torch.long), LENGTHS
    log_probs, padded, lengths, unknown = (TraceFakeMode().from_tensor(each) for each in (*real, LENGTHS.clone()))
    remember_values([lengths], [LENGTHS])
    shapes = [[each.shape for each in corrected_result(ALIGN, (log_probs, padded, lengths, lengths), on_host=True)]]
    shapes += [[each.shape for each in ALIGN(*real[:2], LENGTHS, LENGTHS)]]
    assert shapes[0] == shapes[1] == [(SAMPLES,), (SAMPLES, STEPS, 2 * 5 + 1)]
    assert corrected_result(ALIGN, (log_probs, unknown, lengths, unknown), on_host=True) is None
