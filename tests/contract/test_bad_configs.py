"""Whatever becomes of a config's files, it is read or refused in one clear line, and nothing on disk changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import read_config
from memplan.configs.documents import MAX_CONFIG_BYTES
from memplan.configs.ecosystems.registry import ECOSYSTEMS
from memplan.errors import ConfigError
from tests.contract.config_cases import BY_LINE, CASES, Case, for_cases, one_of_each, read
from tests.refusals import refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_EACH_KIND = one_of_each(lambda case: (case.format_name, case.is_layered))
EACH_KIND = for_cases(OF_EACH_KIND)
LAYERED = tuple(each for each in OF_EACH_KIND if each.is_layered)
LAUGHS = "\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 10))
# What makes the base of a case inherit from what inherits from it.
CIRCLES = {
    "openmmlab-0.x": ("base.py", "_base_ = './leaf.py'\n"),
    "mmengine": ("base.py", "_base_ = './leaf.py'\n"),
    "detectron2": ("base.yaml", "_BASE_: x.yaml\n"),
    "detectron2-lazy": ("base.py", "from .leaf import train\n"),
    "lightning-hydra": ("trainer/gpu.yaml", "defaults:\n  - gpu\n"),
}


def problem_of(case: Case, path: Path) -> str | None:
    """Return the one line that a config is refused with; None where it is read."""
    return refusal(lambda: read(case, path), path.parent)


def test_there_is_a_case_of_every_ecosystem() -> None:
    named = {each.format_name for each in CASES}
    besides = {"accelerate"}  # which stands beside a config, in one of the cases
    assert {each.name for each in ECOSYSTEMS} - besides == named


@EACH_KIND
@pytest.mark.parametrize(
    ("spoilt", "part"),
    [
        (lambda content: content + b"# \xe9", "byte 0xe9 is not UTF-8"),
        (lambda content: content[:40] + b"\0" + content[40:], "the file is binary"),
        (lambda content: b"", "the file is empty"),
        (lambda content: content + b"#" * (10 << 20), f"more than any config (at most {MAX_CONFIG_BYTES})"),
    ],
    ids=["not UTF-8", "binary", "empty", "10 MiB"],
)
def test_what_is_no_text_of_a_config_is_refused(
    case: Case, spoilt: Callable[[bytes], bytes], part: str, tmp_path: Path
) -> None:
    path = case.write(tmp_path)
    path.write_bytes(spoilt(path.read_bytes()))
    assert part in str(problem_of(case, path))


@EACH_KIND
@pytest.mark.parametrize("newline", BY_LINE, ids=["lf", "crlf"])
def test_a_config_cut_short_is_read_or_refused(case: Case, newline: str, tmp_path: Path) -> None:
    path = replace(case, newline=newline).write(tmp_path)
    content = path.read_bytes()
    for end in (len(content) // 3, len(content) * 2 // 3):
        path.write_bytes(content[:end])
        problem_of(case, path)


@for_cases(each for each in OF_EACH_KIND if "yaml" in list(each.files)[-1])
def test_aliases_that_expand_without_end_are_refused(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    path.write_text(f"{path.read_text()}b0: &b0 [1, 2]\n{LAUGHS}\n")
    assert "its aliases expand without reason" in str(problem_of(case, path))


@for_cases(LAYERED)
def test_a_broken_file_that_a_config_is_made_of_is_named(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    base = tmp_path / next(iter(case.files))
    base.write_bytes(base.read_bytes() + b"\n\xe9")
    problem = str(problem_of(case, path))
    assert "byte 0xe9 is not UTF-8" in problem
    assert problem.startswith(str(base))


@for_cases(each for each in LAYERED if each.format_name in CIRCLES)
def test_files_that_inherit_in_a_circle_are_refused(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    name, text = CIRCLES[case.format_name]
    (tmp_path / name).write_text(text)
    problem = str(problem_of(case, path))
    assert any(each in problem for each in ("itself", "circular", "each other without end"))


def test_a_config_laid_over_itself_is_refused(tmp_path: Path) -> None:
    (case,) = (each for each in CASES if each.name == "lightning cli layers")
    path = case.write(tmp_path)
    with pytest.raises(ConfigError, match="laid over itself"):
        read_config(path, path)
