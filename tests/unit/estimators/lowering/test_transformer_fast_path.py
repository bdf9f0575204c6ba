"""The path that layers of transformers take in evaluation: what it holds at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.lowering import transformer_fast_path
from memplan.estimators.lowering.kernel_rules import host_kernels
from memplan.estimators.lowering.transformer_fast_path import encoder_layer, native_attention
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Component
from memplan.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 512
AMPERE = (8, 0)


def peak_bytes(call: Callable[..., object], *given: torch.Tensor) -> int:
    recording, fakes = Recording(micro_batch_size=1), TraceFakeMode()
    ledger = StorageLedger(recording)
    recorder = OperatorRecorder(
        recording, ledger, ModulePaths(nn.Identity()), kernels=host_kernels(), host_copies=None, fakes=fakes
    )
    tensors = [fakes.from_tensor(each) for each in given]
    ledger.track_all(tensors, Component.INPUTS, module="", operator="given")
    given_bytes = recording.peak_bytes
    with torch.no_grad(), fakes, recorder:
        call(*tensors)
    return recording.peak_bytes - given_bytes


def attention_bytes(
    samples: int, length: int, heads: int, *, capability: tuple[int, int] | None = AMPERE, masked: bool = False
) -> int:
    def call(values: torch.Tensor, mask: torch.Tensor, *projections: torch.Tensor) -> object:
        seen = mask if masked else None
        return native_attention(
            values, values, values, WIDTH, heads, *projections, seen, False, True, 1, capability=capability
        )

    sizes = ((samples, length, WIDTH), (samples, length), (3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,))
    return peak_bytes(call, *map(torch.zeros, sizes))


def test_a_fused_kernel_holds_query_key_and_value_once() -> None:
    # of 1 MiB: query, key and value, what attends and its projection
    assert attention_bytes(4, 128, 4) == pytest.approx(5 * MIB, abs=64 * KIB)


@pytest.mark.parametrize(("multiple", "found_mib"), [(1, 5), (8, 3 + 32)])
def test_a_fused_kernel_gets_heads_of_some_multiple_only(
    monkeypatch: pytest.MonkeyPatch, multiple: int, found_mib: int
) -> None:
    monkeypatch.setattr(transformer_fast_path, "_FUSED_HEAD_MULTIPLE", multiple)
    # 128 heads of 4, whose products are 32 MiB of scores
    assert attention_bytes(4, 128, 128) == pytest.approx(found_mib * MIB, abs=MIB / 2)


def test_products_hold_query_key_and_value_twice() -> None:
    # once as they are projected and once by heads; the scores are 1 MiB
    assert attention_bytes(4, 128, 4, capability=None) == 6 * MIB


def test_masked_scores_are_normalised_beside_themselves() -> None:
    # query, key and value beside 8 MiB of scores of eight heads
    assert attention_bytes(1, 512, 8, capability=None) == (3 + 8) * MIB
    assert attention_bytes(1, 512, 8, masked=True) == pytest.approx((3 + 2 * 8) * MIB, abs=4 * KIB)


def test_masked_scores_of_long_rows_are_held_four_times() -> None:
    # query, key and value of 4 MiB each beside 32 MiB of scores of two heads
    assert attention_bytes(1, 2048, 2, masked=True) == pytest.approx((3 * 4 + 4 * 32) * MIB, abs=4 * KIB)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer_holds_what_it_widens_once(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 16 * WIDTH, batch_first=True)
    attention, norms, linear = layer.self_attn, (layer.norm1, layer.norm2), (layer.linear1, layer.linear2)
    projections = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    others = [each.detach() for module in (*norms, *linear) for each in (module.weight, module.bias)]

    def call(values: torch.Tensor, *weights: torch.Tensor) -> object:
        settings = (True, norm_first, 1e-5)
        return encoder_layer(values, WIDTH, 4, *weights[:4], *settings, *weights[4:], capability=AMPERE)

    found = peak_bytes(call, torch.zeros(4, 128, WIDTH), *(each.detach() for each in projections), *others)
    # of 1 MiB: 16 in the widened layer, its result and what is added to that; before it, what is normalised
    assert found == (18 + norm_first) * MIB
