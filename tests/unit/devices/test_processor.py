"""What the kernel tells of the processor."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from memplan.devices.processor import half_formats, processor_name
from tests.making import write_files

if TYPE_CHECKING:
    from pathlib import Path


def kernel_that_says(text: str, root: Path) -> Path:
    write_files(root, {"proc/cpuinfo": text})
    return root


def test_the_model_is_named(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: Xeon\n\nprocessor\t: 1\nmodel name\t: Xeon\n"
    assert processor_name(root=kernel_that_says(text, tmp_path)) == "Xeon"


@pytest.mark.parametrize(
    ("line", "formats"),
    [
        ("flags\t\t: fpu avx512bw", ()),
        ("flags\t\t: fpu avx512_bf16", ("bf16",)),
        ("flags\t\t: amx_bf16 amx_tile avx512_fp16", ("bf16", "fp16")),
        ("Features\t: fp asimd asimdhp bf16", ("bf16", "fp16")),
    ],
)
def test_half_formats_are_read_from_the_instructions(line: str, formats: tuple[str, ...], tmp_path: Path) -> None:
    assert half_formats(root=kernel_that_says(f"processor\t: 0\n{line}\n", tmp_path)) == formats


def test_a_kernel_that_does_not_tell_is_not_guessed_for(tmp_path: Path) -> None:
    assert half_formats(root=tmp_path) is None
    assert processor_name(root=tmp_path) == platform.machine()
