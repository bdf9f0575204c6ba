"""Operators that users define in Python, on fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.lowering.kernel_rules import cuda_kernels, host_kernels
from memplan.estimators.recorder.custom_operators import body_of
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Phase
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.lowering.kernel_rules import KernelRules

SIDE = 512  # of matrices of 1 MiB


@torch.library.custom_op("memplan_tests::sum_of_copies", mutates_args=())
def sum_of_copies(values: torch.Tensor, copies: int) -> torch.Tensor:
    return torch.stack([values] * copies).sum(0)


@torch.library.custom_op("memplan_tests::scaled_by_value", mutates_args=())
def scaled_by_value(values: torch.Tensor) -> torch.Tensor:
    doubled = values * 2
    return doubled * doubled.max().item()


@scaled_by_value.register_fake
def _(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values)


@torch.library.custom_op("memplan_tests::filled", mutates_args=("values",))
def filled(values: torch.Tensor) -> None:
    values.copy_(torch.cat([values, values])[: len(values)])


@torch.library.custom_op("memplan_tests::by_device", mutates_args=(), device_types="cuda")
def by_device(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values] * 2).sum(0)


@by_device.register_kernel("cpu")
def _(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values] * 4).sum(0)


@torch.library.custom_op("memplan_tests::gradient_in_two_terms", mutates_args=())
def gradient_in_two_terms(gradient: torch.Tensor) -> torch.Tensor:
    terms = gradient * 2
    terms = terms + gradient
    return terms  # noqa: RET504 - the first is freed once the second is there


@torch.library.custom_op("memplan_tests::tripled", mutates_args=())
def tripled(values: torch.Tensor) -> torch.Tensor:
    return values * 3


tripled.register_autograd(lambda _ctx, gradient: gradient_in_two_terms(gradient))

PACKAGES = {"host": host_kernels(), "card": cuda_kernels((8, 0), 108)}


class Session:
    """A recorder on fake tensors, as a step has it, and what one call recorded."""

    def __init__(self, call: Callable[[torch.Tensor], object], kernels: KernelRules) -> None:
        self.recording, self.fakes = Recording(micro_batch_size=1), TraceFakeMode()
        ledger = StorageLedger(self.recording)
        self.recorder = OperatorRecorder(
            self.recording, ledger, ModulePaths(nn.Identity()), kernels=kernels, host_copies=None, fakes=self.fakes
        )
        with self.fakes, self.recorder:
            values = torch.empty(SIDE, SIDE, requires_grad=call is tripled)
            self.result = call(values)
            if isinstance(self.result, torch.Tensor) and self.result.requires_grad:
                self.recording.phase = Phase.BACKWARD
                self.result.backward(torch.ones_like(self.result))
        self.recorder.resolve_pending_reuse()


@pytest.mark.parametrize("kernels", PACKAGES.values(), ids=PACKAGES)
def test_what_a_body_allocates_is_recorded(kernels: KernelRules) -> None:
    session = Session(lambda values: sum_of_copies(values, 8), kernels)
    assert session.recording.peak_bytes == (1 + 8 + 1) * MIB  # values, copies and result
    assert not session.recorder.unknown_calls


def test_a_body_that_reads_values_is_left_out_and_told_of() -> None:
    session = Session(scaled_by_value, host_kernels())
    assert isinstance(session.result, torch.Tensor)
    assert session.recording.block_bytes[-1] == MIB  # the result, as the author says
    assert session.recorder.unknown_calls == {"memplan_tests.scaled_by_value": 1}


def test_a_body_that_only_writes_returns_nothing() -> None:
    session = Session(filled, host_kernels())
    assert session.result is None
    assert session.recording.peak_bytes == 3 * MIB
    assert not session.recorder.unknown_calls


def test_the_body_of_the_device_is_run() -> None:
    operator = torch.ops.memplan_tests.by_device.default
    of_card, of_host = body_of(operator, "cuda"), body_of(operator, "cpu")
    assert of_card is not None
    assert of_host is not None
    assert of_card is not of_host
    assert Session(by_device, host_kernels()).recording.peak_bytes == (1 + 4 + 1) * MIB
    assert body_of(torch.ops.aten.relu.default, "cpu") is None


def test_a_sum_in_a_body_takes_memory_of_its_own_in_the_backward_pass() -> None:
    session = Session(tripled, host_kernels())
    # values, result and its gradient; then the first term, and the sum beside it
    assert session.recording.peak_bytes == (3 + 2) * MIB
