"""What PyTorch's own questions about kernels of attention are answered for a card that is not there."""

from __future__ import annotations

import pytest
import torch

import memplan
from memplan.estimators.lowering.attention import Backend
from memplan.estimators.lowering.attention_questions import _answer

A100, T4 = (8, 0), (7, 5)


def asked(backend: Backend, capability: tuple[int, int], dtype: torch.dtype, *, head_dim: int = 64) -> bool:
    query = torch.zeros(2, 4, 128, head_dim, dtype=dtype)
    params = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, False, False)
    return _answer(params, backend=backend, capability=capability)


@pytest.mark.parametrize(
    ("backend", "capability", "dtype", "is_taken"),
    [
        (Backend.FLASH, A100, torch.bfloat16, True),
        (Backend.FLASH, A100, torch.float32, False),
        (Backend.FLASH, T4, torch.float16, False),
        (Backend.EFFICIENT, T4, torch.float16, True),
        (Backend.EFFICIENT, T4, torch.bfloat16, False),
        (Backend.CUDNN, A100, torch.float16, True),
        (Backend.CUDNN, T4, torch.float16, False),
    ],
)
def test_a_kernel_takes_what_the_card_and_the_type_allow(
    backend: Backend, capability: tuple[int, int], dtype: torch.dtype, is_taken: bool
) -> None:
    assert asked(backend, capability, dtype) is is_taken


def test_a_kernel_that_is_switched_off_takes_nothing() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        assert not asked(Backend.FLASH, A100, torch.bfloat16)
        assert asked(Backend.EFFICIENT, A100, torch.bfloat16)


class AttendsToNestedSamples(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(64, 192)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.as_nested_tensor([samples[0], samples[1, :8]], layout=torch.jagged)
        parts = (each.unflatten(-1, (2, 32)).transpose(1, 2) for each in self.project(nested).chunk(3, -1))
        attended: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(*parts)
        return attended.transpose(1, 2).flatten(2).values()


def test_nested_samples_run_the_kernel_that_the_card_has_for_them() -> None:
    workload = memplan.Workload(
        model=AttendsToNestedSamples,
        batch=lambda size: torch.ones(size, 16, 64),
        loss=lambda model, samples: model(samples).float().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    for card, kernel in (("h100", "aten._flash_attention_backward"), ("t4", "aten._efficient_attention_backward")):
        found = memplan.estimate(workload, memplan.Recipe(micro_batch_size=2, precision="fp16"), card)
        assert f"inside {kernel}" in {each.name for each in found.top_operators}
        assert found.uncounted == ()
