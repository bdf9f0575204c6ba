"""Which number formats a device multiplies itself, and what is said of those it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec, find_card
from memplan.recipe import Precision
from memplan.recommend.number_formats import named_together, precisions_of, why_no_faster, why_unsupported

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=1, half_formats=("bf16",))
PASCAL, VOLTA, AMPERE = (find_card(name) for name in ("P100", "V100 16GB", "A100 40GB"))


def test_older_cards_are_not_asked_for_formats_they_do_not_have() -> None:
    assert precisions_of(VOLTA) == (Precision.FP32, Precision.FP16)
    assert precisions_of(AMPERE) == (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)


def test_a_format_the_device_does_not_have_is_refused_by_name() -> None:
    assert why_unsupported(Precision.BF16, VOLTA) == f"{VOLTA.name} has no bf16 units"
    assert why_unsupported(Precision.TF32, CPU) == "the CPU has no TF32 units"


@pytest.mark.parametrize("precision", list(Precision))
def test_a_card_of_which_only_the_size_is_known_is_refused_nothing(precision: Precision) -> None:
    assert why_unsupported(precision, replace(AMPERE, compute_capability=None)) is None


@pytest.mark.parametrize("device", [PASCAL, CPU])
def test_fp16_is_of_use_where_nothing_multiplies_it_because_it_saves_memory(device: DeviceSpec) -> None:
    assert why_unsupported(Precision.FP16, device) is None
    assert why_unsupported(Precision.FP16_TRUE, device) is None


@pytest.mark.parametrize(
    ("precision", "device", "said"),
    [
        (Precision.FP16, PASCAL, f"no faster, because {PASCAL.name} has no fp16 matrix units"),
        (Precision.FP16, VOLTA, f"no faster, although {VOLTA.name} multiplies fp16 itself"),
        (Precision.TF32, AMPERE, f"no faster, although {AMPERE.name} multiplies tf32 itself"),
        (Precision.BF16_TRUE, CPU, "no faster, although the CPU multiplies bf16 itself"),
        (Precision.FP16, CPU, "no faster, because the CPU has no instructions for fp16"),
    ],
)
def test_what_is_no_faster_has_its_reason(precision: Precision, device: DeviceSpec, said: str) -> None:
    assert (why_no_faster(precision, device) or "").startswith(said)


def test_no_reason_is_made_up_where_the_device_does_not_tell() -> None:
    assert why_no_faster(Precision.BF16, replace(CPU, half_formats=None)) is None
    assert why_no_faster(Precision.BF16, replace(AMPERE, compute_capability=None)) is None
    assert why_no_faster(Precision.FP32, AMPERE) is None


def test_precisions_of_one_reason_are_named_together() -> None:
    reasons = {Precision.TF32: "no units", Precision.FP16: "no key", Precision.BF16: "no key"}
    assert named_together("", reasons) == ["tf32: no units", "fp16, bf16: no key"]
    assert named_together("not tried", reasons) == ["tf32 not tried: no units", "fp16, bf16 not tried: no key"]
