"""The public names are what they say they are."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

import memplan


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    assert memplan.__all__ == sorted(memplan.__all__)
    for name in memplan.__all__:
        assert getattr(memplan, name) is not None


def test_a_public_name_stays_one_when_the_room_of_the_same_name_is_imported() -> None:
    importlib.import_module("memplan.probe")
    assert callable(memplan.probe)
    assert memplan.probe is memplan.probe


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        _ = memplan.train


@pytest.mark.parametrize("value", [memplan.Recipe(micro_batch_size=1)], ids=["Recipe"])
def test_values_are_frozen(value: object) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.micro_batch_size = 2


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (memplan.estimate, ["workload", "recipe", "device"]),
        (memplan.probe, ["workload", "recipe", "device", "max_util"]),
        (memplan.plan, ["config_or_workload", "device", "max_util", "min_util"]),
    ],
)
def test_what_other_programs_call_takes_its_first_arguments_by_place_and_by_name(function, names) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == names


def test_what_other_programs_make_and_read_has_its_fields_in_their_order() -> None:
    def names(kind: type) -> list[str]:
        return [each.name for each in dataclasses.fields(kind)]

    assert names(memplan.Workload)[:5] == ["model", "batch", "loss", "optimizer", "name"]
    assert names(memplan.Recipe)[:4] == ["micro_batch_size", "accumulation_steps", "precision", "learning_rate"]
    peaks = {"peak_allocated_bytes", "peak_reserved_bytes", "peak_process_bytes", "breakdown", "peak_phase"}
    assert peaks < set(names(memplan.Estimate))
    assert list(memplan.Precision) == ["fp32", "tf32", "fp16", "bf16", "fp16-true", "bf16-true"]
    assert [str(each) for each in memplan.OutcomeKind] == [
        "fits", "out of memory (device)", "out of memory (host)", "allocator retries", "kernel failure", "user error",
        "non-finite loss", "never stepped", "too few steps", "timeout", "crash",
    ]  # fmt: skip
