"""What a published measurement is, and what a rebuilt step is asked."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from memplan.estimators.allocators.allocator_config import SegmentOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from memplan.recipe import Recipe
    from memplan.workload import Workload

DATA = Path(__file__).parent / "data"


class Peak(StrEnum):
    """Which peak was measured."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training step that somebody measured, and how it is built again.

    Args:
        key: stays the same as long as the row does.
        family: rows of one source and kind.
        model: what the source calls it.
        workload: builds the step; rows of one ``trace_key`` build the same.
        trace_key: rows that differ in nothing but the micro-batch share it.
        recipe: the setting.
        device: card of the catalogue.
        peak: which peak was measured.
        measured_mib: what was measured; None where only sizes that ran and failed are known.
        beyond_peak_mib: what the measurement holds beside the peak, where the source lets one tell.
        failed_micro_batch_size: the next size that was tried and did not run; None where none was.
        context_mib: what the process holds beside the reserved peak, where it was measured.
        counts_blas_workspaces: whether the caching allocator held those of cuBLAS, as it does from torch 2.0 on
            (github.com/pytorch/pytorch pull request 83461, issue 95668).
        allocator_settings: ``PYTORCH_CUDA_ALLOC_CONF`` of the run.
        reads_first_step: whether the peak is that of all steps, cuDNN's search for algorithms in the first included.
        segment_order: which of equally large free blocks the run's version of torch used; by address before 2.12.
        ran_out: whether the run ended out of memory, so that the measurement is only a lower bound.
        smallest_fit_mib: smallest cap of the allocator under which the run was repeated; None where it was not.
        largest_failure_mib: largest cap under which it ran out of memory.
        rivals: relative errors of other estimators on this row, by name.
    """

    key: str
    family: str
    model: str
    workload: Callable[[], Workload]
    trace_key: str
    recipe: Recipe
    device: str
    peak: Peak
    measured_mib: float | None
    beyond_peak_mib: float = 0.0
    failed_micro_batch_size: int | None = None
    context_mib: float | None = None
    counts_blas_workspaces: bool = True
    allocator_settings: str = ""
    reads_first_step: bool = False
    segment_order: SegmentOrder = SegmentOrder.ADDRESS
    ran_out: bool = False
    smallest_fit_mib: float | None = None
    largest_failure_mib: float | None = None
    rivals: Mapping[str, float] = field(default_factory=dict)


def table(name: str) -> Iterator[dict[str, str]]:
    """Read a table of facts beside this module."""
    with (DATA / f"{name}.csv").open(newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def in_benchmark_mode(model: Callable[[], nn.Module]) -> nn.Module:
    """Switch cuDNN's benchmark mode on and build a model."""
    torch.backends.cudnn.benchmark = True
    return model()


def number(text: str) -> float | None:
    """Read a cell that may be empty."""
    return float(text) if text else None
