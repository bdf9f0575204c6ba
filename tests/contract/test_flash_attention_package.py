"""Models of transformers that ask for the flash_attn package, which is installed nowhere without a card."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch

from memplan.devices.cards import find_card
from memplan.errors import WorkloadError
from memplan.estimators import StepTrace, estimate
from memplan.recipe import Recipe
from memplan.torch_releases import release_of
from memplan.workload import Workload
from tests.contract.tracing import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

pytest.importorskip("transformers", reason="needs memplan[transformers]")
if release_of(version("transformers")) < (5, 4):
    pytest.skip("the package has a stand-in for transformers from 5.4 on", allow_module_level=True)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LENGTH = 256
NOTE = "flash_attn is not installed here"
HAS_PACKED_ATTENTION = find_spec("torch.nn.attention.varlen") is not None


def model_with(attention: str) -> nn.Module:
    import transformers  # noqa: PLC0415 - imported late, as factories of users may do

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = attention
    return transformers.LlamaForCausalLM(config)


def plain(size: int) -> dict[str, torch.Tensor]:
    words = torch.zeros(size, LENGTH, dtype=torch.int64)
    return {"input_ids": words, "labels": words}


def padded(size: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(size, LENGTH, dtype=torch.int64)
    mask[:, LENGTH // 2 :] = 0
    return {**plain(size), "attention_mask": mask}


def packed(size: int) -> dict[str, torch.Tensor]:
    positions = torch.arange(LENGTH).repeat(size)
    return {**{name: each.reshape(1, -1) for name, each in plain(size).items()}, "position_ids": positions[None]}


def trace_of(
    attention: str, batch: Callable[[int], Any], *, card: str = "rtx-3090", precision: str = "bf16"
) -> StepTrace:
    workload = Workload(
        model=lambda: model_with(attention),
        batch=batch,
        loss=lambda model, batch: model(**batch).loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    return traced(workload, find_card(card), Recipe(micro_batch_size=4, precision=precision))


def allocated_bytes(trace: StepTrace) -> int:
    return estimate(trace, micro_batch_size=4, device=find_card("rtx-3090")).peak_allocated_bytes


def test_it_takes_what_pytorchs_flash_attention_takes() -> None:
    by_package, by_pytorch = (trace_of(each, plain) for each in ("flash_attention_2", "sdpa"))
    assert allocated_bytes(by_package) == allocated_bytes(by_pytorch)
    assert any(note.startswith(NOTE) for note in by_package.notes)
    assert not any(note.startswith(NOTE) for note in by_pytorch.notes)


@pytest.mark.skipif(not HAS_PACKED_ATTENTION, reason="PyTorch has flash attention for packed sequences from 2.10 on")
@pytest.mark.parametrize("batch", [padded, packed])
def test_it_needs_no_mask_for_padded_or_packed_sequences(batch: Callable[[int], Any]) -> None:
    by_package, by_pytorch = (trace_of(each, batch) for each in ("flash_attention_2", "sdpa"))
    assert allocated_bytes(by_package) < allocated_bytes(by_pytorch)
    assert "torch_attn._varlen_attn" in by_package.timelines[0].operator_names
    assert by_package.method == by_pytorch.method


@pytest.mark.skipif(HAS_PACKED_ATTENTION, reason="PyTorch before 2.10 has none")
def test_what_pytorch_has_no_kernel_for_is_told_with_a_way_out() -> None:
    with pytest.raises(WorkloadError, match=r"PyTorch 2\.10"):
        trace_of("flash_attention_2", packed)


@pytest.mark.parametrize(
    ("card", "precision", "said"),
    [("rtx-3090", "fp32", "only supports fp16 and bf16"), ("t4", "fp16", "only supports Ampere GPUs or newer")],
)
def test_what_the_package_refuses_is_refused(card: str, precision: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        trace_of("flash_attention_2", plain, card=card, precision=precision)
