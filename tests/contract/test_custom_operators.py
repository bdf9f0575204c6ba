"""Operators that are written in Python, as users define them and as PyTorch has some."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from memplan import Recipe, Workload
from memplan.devices.cards import DeviceKind, DeviceSpec, find_card
from memplan.estimators import estimate
from memplan.units import GIB, KIB, MIB
from tests.contract.tracing import traced
from tests.making import context

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the child cannot import the tests

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=8 * GIB, context=context(200))
CARD = find_card("a100-80gb")
CUBLAS_BYTES = 2 * 4 * MIB + 128 * KIB


@torch.library.custom_op("memplan_contract::sum_of_copies", mutates_args=())
def sum_of_copies(values: torch.Tensor) -> torch.Tensor:
    scratch = torch.empty(8, *values.shape, device=values.device)
    return scratch.copy_(values).sum(0)


sum_of_copies.register_autograd(lambda _ctx, gradient: sum_of_copies(gradient))


@pytest.mark.parametrize("device", [CPU, CARD], ids=["cpu", "card"])
def test_what_an_operator_of_the_user_takes_inside_is_counted(device: DeviceSpec) -> None:
    workload = Workload(
        model=lambda: nn.Linear(512, 512, bias=False),
        batch=lambda size: torch.zeros(size, 512),
        loss=lambda model, batch: sum_of_copies(model(batch)).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = traced(workload, device)
    found = estimate(trace, micro_batch_size=512, device=device)
    workspace_bytes = 2 * CUBLAS_BYTES if device is CARD else 0  # of the forward and of the backward pass
    # weights, batch, the result's gradient, copies of that and their sum
    assert found.peak_allocated_bytes == pytest.approx((3 + 8 + 1) * MIB + workspace_bytes, abs=4 * KIB)
    assert trace.method == "fake-tensor trace"
    assert trace.uncounted == ()


def copies(name: str, device_type: str) -> Any:
    @torch.library.custom_op(f"memplan_contract::{name}", mutates_args=())
    def copied(values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    copied.register_autocast(device_type, torch.bfloat16)
    return copied


@pytest.mark.parametrize(
    ("copied", "expected_mib"),
    [
        (copies("copied_in_half", "cuda"), 32 + 16 + 16),  # the batch, that in half, and its copy
        (copies("copied_as_it_is", "cpu"), 32 + 32 + 16),  # the batch, its copy, and that in half for the layer
    ],
)
def test_what_is_registered_for_autocast_on_a_card_is_cast_there(copied: Any, expected_mib: int) -> None:
    workload = Workload(
        model=lambda: nn.Linear(1024, 1, bias=False),
        batch=lambda size: torch.zeros(size, 8, 1024),
        loss=lambda model, batch: model(copied(batch)).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = traced(workload, CARD, Recipe(micro_batch_size=1024, precision="bf16"))
    found = estimate(trace, micro_batch_size=1024, device=CARD)
    assert found.peak_allocated_bytes == pytest.approx(expected_mib * MIB + 2 * CUBLAS_BYTES, abs=64 * KIB)


ROWS, WIDTH, CLASSES = 32_768, 128, 2048


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyOptions"), reason="this PyTorch has no loss in chunks")
def test_a_loss_in_chunks_takes_those_of_the_card_at_any_size() -> None:
    options = nn.LinearCrossEntropyOptions()

    def loss(model: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        classes = torch.zeros(len(rows), dtype=torch.long)
        return functional.linear_cross_entropy(rows, model.weight, classes, options=options)

    workload = Workload(
        model=lambda: nn.Linear(WIDTH, CLASSES, bias=False, dtype=torch.bfloat16),
        batch=lambda size: torch.zeros(size, WIDTH, dtype=torch.bfloat16),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = traced(workload, CARD, Recipe(micro_batch_size=ROWS))
    for rows in (ROWS // 2, ROWS):
        settled = options._adjust(rows, WIDTH, CLASSES, torch.bfloat16, device=torch.device("cuda"))
        # logits in fp32 and in bfloat16, and rows in fp32
        chunk = settled.batch_chunk_size * (CLASSES * (4 + 2) + WIDTH * 4)
        found = estimate(trace, micro_batch_size=rows, device=CARD)
        # weights and their gradient, of half a MiB each, and of each row its numbers, class and the weight of that
        expected = MIB + rows * (WIDTH * 2 + 8 + 4) + chunk + CUBLAS_BYTES
        assert found.peak_allocated_bytes == pytest.approx(expected, rel=0.02)
    assert trace.uncounted == ()
