"""Allocator settings are accepted and refused as PyTorch itself does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from memplan.errors import UsageError
from memplan.estimators.allocators.allocator_config import AllocatorConfig

ASK_TORCH = """
import json, sys, torch
def accepts(text):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError):
        return False
    return True
print(json.dumps([accepts(text) for text in json.load(sys.stdin)]))
"""
SETTINGS = [
    "expandable_segments:True",
    " expandable_segments : False ",
    "expandable_segments:true",
    "expandable_segments:1",
    "max_split_size_mb:20",
    "max_split_size_mb:19",
    "max_split_size_mb:128,expandable_segments:True",
    "max_non_split_rounding_mb:20",
    "max_non_split_rounding_mb:19",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:0,>:8]",
    "roundup_power2_divisions:[3:1]",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1",
    "pinned_use_background_threads:True",
    "large_segment_size_mb:11",  # this one stays in force: nothing that depends on it may follow
    "large_segment_size_mb:10",
    "large_segment_size_mb:100,max_split_size_mb:64",
]


def accepts(text: str) -> bool:
    try:
        AllocatorConfig.parse(text)
    except UsageError:
        return False
    return True


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11),
    reason="large_segment_size_mb came with torch 2.11",
)
def test_what_pytorch_accepts_is_accepted_and_what_it_refuses_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], input=json.dumps(SETTINGS), capture_output=True, text=True, check=True
    )
    torchs_answers = json.loads(ended.stdout)
    assert {text: accepts(text) for text in SETTINGS} == dict(zip(SETTINGS, torchs_answers, strict=True))
