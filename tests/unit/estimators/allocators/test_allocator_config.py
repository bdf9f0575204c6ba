"""Settings of the caching allocator: defaults, rounding, and the string they are read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.estimators.allocators.allocator_config import AllocatorConfig, SegmentOrder
from memplan.units import GIB, KIB, MIB


def test_no_settings_are_the_defaults() -> None:
    assert AllocatorConfig.parse("") == AllocatorConfig()


@pytest.mark.parametrize(("requested_bytes", "block_bytes"), [(1, 512), (512, 512), (513, 1024), (1000, 1024)])
def test_requests_are_rounded_up_to_512_bytes(requested_bytes: int, block_bytes: int) -> None:
    assert AllocatorConfig().rounded_bytes(requested_bytes) == block_bytes


@pytest.mark.parametrize(
    ("requested_bytes", "block_bytes"),
    [
        (1200, 1536),  # not above 512 * 4: rounded to 512
        (4 * KIB, 4 * KIB),  # a power of two stays
        (5 * KIB, 5 * KIB),
        (5 * KIB + 1, 6 * KIB),  # steps of a quarter of 4 KiB
        (9 * MIB, 10 * MIB),  # steps of a quarter of 8 MiB
    ],
)
def test_four_divisions_round_up_to_quarters_of_the_power_of_two_below(requested_bytes: int, block_bytes: int) -> None:
    assert AllocatorConfig.parse("roundup_power2_divisions:4").rounded_bytes(requested_bytes) == block_bytes


def test_divisions_can_differ_by_size() -> None:
    config = AllocatorConfig.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert config.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert config.rounded_bytes(600 * MIB) == 768 * MIB
    assert config.rounded_bytes(GIB + 1) == GIB + 256 * MIB


def test_sizes_between_listed_bounds_are_not_rounded_to_divisions() -> None:
    config = AllocatorConfig.parse("roundup_power2_divisions:[4:2,16:8]")
    assert config.roundup_power2_divisions == (2, 2, 2, 0, 8) + (0,) * 11


@pytest.mark.parametrize(
    ("block_bytes", "segment_bytes"),
    [(512, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
     (11 * MIB, 12 * MIB), (33 * MIB + 512, 34 * MIB)],
)  # fmt: skip
def test_the_driver_is_asked_for_2_or_20_mib_or_steps_of_2_mib(block_bytes: int, segment_bytes: int) -> None:
    assert AllocatorConfig().segment_bytes(block_bytes) == segment_bytes


def test_every_setting_that_changes_memory_is_read() -> None:
    config = AllocatorConfig.parse(
        "expandable_segments:True, max_split_size_mb:128, max_non_split_rounding_mb:64, large_segment_size_mb:32,"
        "garbage_collection_threshold:0.8, per_process_memory_fraction:0.5, backend:native"
    )
    assert config == AllocatorConfig(
        expandable_segments=True,
        max_split_size_bytes=128 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        large_segment_size_bytes=32 * MIB,
        garbage_collection_threshold=0.8,
        per_process_memory_fraction=0.5,
    )


def test_settings_of_host_memory_are_accepted_and_change_nothing() -> None:
    text = "pinned_use_background_threads:True,pinned_num_register_threads:8,release_lock_on_cudamalloc:True"
    assert AllocatorConfig.parse(text) == AllocatorConfig()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("expandable_segments:true", "expandable_segments:true"),
        ("expandable_segments", "expandable_segments"),
        ("max_split_size_mb:19", "max_split_size_mb:19"),
        ("max_split_size_mb:64,large_segment_size_mb:100", "max_split_size_mb:64"),
        ("max_split_size_mb:lots", "max_split_size_mb:lots"),
        ("max_non_split_rounding_mb:10", "max_non_split_rounding_mb:10"),
        ("large_segment_size_mb:10", "large_segment_size_mb:10"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold:1"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold:0"),
        ("garbage_collection_threshold:often", "garbage_collection_threshold:often"),
        ("per_process_memory_fraction:2", "per_process_memory_fraction:2"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions:0"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions:3"),
        ("roundup_power2_divisions:[3:1]", "roundup_power2_divisions:3"),
        ("roundup_power2_divisions:[256:3]", "roundup_power2_divisions:3"),
        ("roundup_power2_divisions:[256:1", "roundup_power2_divisions:[256:1"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync"),
    ],
)
def test_a_value_pytorch_refuses_or_memplan_cannot_model_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        AllocatorConfig.parse(text)
    assert named in str(caught.value)


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"expandable_segment:True is not known; did you mean expandable_segments\?"):
        AllocatorConfig.parse("expandable_segment:True")


def test_the_environment_is_read_in_pytorchs_order() -> None:
    environment = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    assert AllocatorConfig.from_environment(environment, torch_version="2.13.0").max_split_size_bytes == 128 * MIB
    del environment["PYTORCH_CUDA_ALLOC_CONF"]
    assert AllocatorConfig.from_environment(environment, torch_version="2.13.0").max_split_size_bytes == 64 * MIB
    assert AllocatorConfig.from_environment({}, torch_version="2.13.0") == AllocatorConfig()


@given(st.integers(1, 2**40), st.sampled_from([0, 1, 2, 4, 8, 16, 64]))
def test_a_block_holds_its_request_and_wastes_at_most_one_division(requested_bytes: int, divisions: int) -> None:
    config = AllocatorConfig(roundup_power2_divisions=(divisions,) * 16)
    block_bytes = config.rounded_bytes(requested_bytes)
    assert block_bytes >= requested_bytes
    assert block_bytes % 512 == 0
    assert block_bytes - requested_bytes < max(512, requested_bytes / max(divisions, 1) if divisions > 1 else 512)
    assert config.rounded_bytes(block_bytes) == block_bytes


@pytest.mark.parametrize(
    ("version", "order"),
    [("2.9.1", SegmentOrder.ADDRESS), ("2.11.0+cu130", SegmentOrder.ADDRESS), ("2.12.0", SegmentOrder.AGE),
     ("2.14.0a0+git1", SegmentOrder.AGE), ("3.0", SegmentOrder.AGE)],
)  # fmt: skip
def test_the_version_of_torch_decides_which_of_equal_blocks_is_used(version: str, order: SegmentOrder) -> None:
    assert AllocatorConfig.from_environment({}, torch_version=version).segment_order is order
