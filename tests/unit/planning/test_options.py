"""Options as text, and who wins where both the command line and the config speak."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.configs import MemplanOptions
from memplan.errors import UsageError
from memplan.planning.options import (
    parse_device,
    parse_devices,
    parse_duration,
    parse_knob_keys,
    parse_precisions,
    parse_rule,
    parse_sizes,
    request_from,
)
from memplan.recipe import Precision
from memplan.units import GIB, MIB


def test_the_config_is_heard_where_the_command_line_is_silent() -> None:
    section = MemplanOptions(device="rtx-3090", budget="2GiB", max_util=0.7, precision=("bf16",))
    request = request_from(section)
    assert (request.device, request.budget_bytes, request.max_utilisation) == ("rtx-3090", 2 * GIB, 0.7)
    assert request.precisions == (Precision.BF16,)


def test_the_command_line_wins_over_the_config() -> None:
    section = MemplanOptions(device="rtx-3090", max_util=0.7)
    request = request_from(MemplanOptions(device="cpu", max_util=0.9).over(section))
    assert (request.device, request.max_utilisation) == ("cpu", 0.9)


def test_a_budget_without_its_unit_is_not_taken_for_bytes() -> None:
    with pytest.raises(UsageError, match="budget '100' is 100 bytes; write its unit, such as 10GiB"):
        request_from(MemplanOptions(budget="100"))


@pytest.mark.parametrize("budget", [8, MIB - 1])
def test_a_number_too_small_for_bytes_has_lost_its_unit_too(budget: int) -> None:
    with pytest.raises(UsageError, match=f"budget {budget} is {budget} bytes; write its unit, such as 10GiB"):
        request_from(MemplanOptions(budget=budget))
    assert request_from(MemplanOptions(budget=MIB)).budget_bytes == MIB


def test_a_device_is_a_name_or_torchs_own() -> None:
    assert [parse_device(each) for each in ("rtx-3090", torch.device("cuda", 1), torch.device("cpu"))] == [
        "rtx-3090",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(UsageError, match="device=0 is not understood; write it like 'cuda:0', 'cpu' or 'rtx-3090'"):
        parse_device(0)  # type: ignore[arg-type]  # as in torch's own functions


def test_a_budget_in_a_unit_that_does_not_exist_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="budget '10XB' is not understood; write it like 24GiB"):
        request_from(MemplanOptions(budget="10XB"))


@pytest.mark.parametrize(("said", "result"), [(None, True), (False, False)])
def test_the_config_may_open_the_loader_and_the_command_line_close_it(said: bool | None, *, result: bool) -> None:
    section = MemplanOptions(loader=True)
    assert request_from(MemplanOptions(loader=said).over(section)).change_loader is result
    assert request_from(MemplanOptions()).change_loader is False


def test_sizes_and_precisions_are_lists_with_commas() -> None:
    assert parse_sizes("8,16, 32") == (8, 16, 32)
    assert parse_precisions("fp32, bf16,fp32") == (Precision.FP32, Precision.BF16)
    assert parse_precisions([Precision.BF16, "fp32"]) == (Precision.BF16, Precision.FP32)
    assert parse_precisions(()) is None


def test_devices_to_compare_are_named_once_each() -> None:
    assert parse_devices("t4, rtx-3090,t4") == ("t4", "rtx-3090")
    assert parse_devices(None) is None


def test_an_empty_device_or_precision_is_not_taken_for_none() -> None:
    assert request_from(MemplanOptions(device="")).device == ""
    with pytest.raises(UsageError, match="precision '' is not known"):
        parse_precisions("")


@pytest.mark.parametrize("text", ["0", "8,-1", "8,,16", "many"])
def test_a_size_that_is_no_whole_number_above_zero_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="batch-size"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(None, None), (90, 90.0), ("90", 90.0), ("1.5 s", 1.5), ("5m", 300.0), ("30min", 1800.0), ("2H", 7200.0)],
)
def test_a_time_is_seconds_or_text_with_a_unit(told: str | float | None, seconds: float | None) -> None:
    assert parse_duration(told, option="trial-limit") == seconds


@pytest.mark.parametrize("told", [0, -1, "0s", "soon", "3 days", ""])
def test_a_time_that_is_not_above_zero_or_has_no_known_unit_is_refused(told: str | float) -> None:
    with pytest.raises(UsageError, match=r"trial-limit .* is not understood; write it like 90s, 30min or 2h"):
        parse_duration(told, option="trial-limit")


def test_the_largest_micro_batch_is_a_fact_of_the_request_once_it_is_named() -> None:
    assert "micro_batch_cap" not in request_from(MemplanOptions()).facts()
    assert request_from(MemplanOptions(max_batch=8)).facts()["micro_batch_cap"] == 8
    with pytest.raises(UsageError, match="max-batch 0 must be a whole number of at least 1"):
        request_from(MemplanOptions(max_batch=0))


def test_a_rule_that_is_not_known_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="lr-rule 'cubic' is not known; use linear, sqrt or none"):
        parse_rule("cubic")


@pytest.mark.parametrize("pair", ["micro_batch_size", "=data.batch_size", "micro_batch_size="])
def test_a_map_that_is_not_knob_equals_key_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        parse_knob_keys([pair])


def test_a_knob_mapped_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_knob_keys(["a=x", "a=y"])


def test_the_replicas_are_those_the_launcher_starts_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert request_from(MemplanOptions()).world_size == 4
    assert request_from(MemplanOptions(), world_size=2).world_size == 2
    assert request_from(MemplanOptions(), replicas=8).world_size == 8
    monkeypatch.delenv("WORLD_SIZE")
    assert request_from(MemplanOptions()).world_size is None


@pytest.mark.parametrize("budget", [2.5e9, True])
def test_a_budget_is_a_whole_number_of_bytes(budget: Any) -> None:
    with pytest.raises(UsageError, match=f"budget {budget} is not understood; write a whole number of bytes"):
        request_from(MemplanOptions(budget=budget))


@pytest.mark.parametrize("text", ["", "t4,"])
def test_a_comma_stands_between_two_devices(text: str) -> None:
    with pytest.raises(UsageError, match=f"device '{text}' must be names of devices; write it like t4,rtx-3090"):
        parse_devices(text)
