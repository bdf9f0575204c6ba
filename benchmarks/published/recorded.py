"""Records of ``benchmarks/truth.py``, as rows: allocated, reserved and process peaks of the same runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from published.rows import Peak, Row, in_benchmark_mode
from record_files import values_in
from truth_cases import OPTIMIZERS, Case, trainable
from truth_models import shard

from memplan.devices.cards import find_card
from memplan.errors import DeviceError
from memplan.estimators.allocators.allocator_config import SegmentOrder
from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import torch
    from torch import nn

_STUBS_FOR = "stubs for "  # what the stubs of ``cuda_stubs`` call the card that they stand for
_MEASURED = {
    Peak.ALLOCATED: "peak_allocated_bytes",
    Peak.RESERVED: "peak_reserved_bytes",
    Peak.PROCESS: "process_after_last_step_bytes",
}


def rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of each recorded run that fitted an uncapped card of the catalogue.

    On a card there are three, and two where the process's peak is over when it is read; on stubs, whose context is
    memplan's own estimate, two, of families of their own.
    """
    for record in values_in(folder, "records"):
        yield from _rows_of(record)


def _rows_of(record: dict[str, Any]) -> Iterator[Row]:
    case = Case(**record["case"])
    card = record["provenance"]["card"]
    device = _card(card.removeprefix(_STUBS_FOR))
    if device is None or record["ending"] != "fits" or case.cap_bytes is not None:
        return
    source = "stubs" if card.startswith(_STUBS_FOR) else "truth"
    has_process = (
        source == "truth"
        and _MEASURED[Peak.PROCESS] in record  # not where cases shared the card
        and not case.cudnn_benchmark  # PyTorch returns what the search took before the process is read
    )
    for peak, name in _MEASURED.items():
        if peak is Peak.PROCESS and not has_process:
            continue
        yield Row(
            key=f"{source}-{device}-{case.key}-{peak}",
            family=f"{source}-{peak}",
            model=case.key.rpartition("-")[0],
            workload=functools.partial(workload_of, case),
            trace_key=f"truth {device} {case.key}",
            recipe=recipe_of(case),
            device=device,
            allocator_settings=case.allocator_settings or "",
            reads_first_step=True,
            segment_order=SegmentOrder.of_torch(record["provenance"]["torch"]),
            peak=peak,
            measured_mib=record[name] / MIB,
            context_mib=_context_bytes(record) / MIB if has_process else None,
        )


def _context_bytes(record: dict[str, Any]) -> int:
    return int(record["process_after_last_step_bytes"] - record["reserved_after_last_step_bytes"])


def recipe_of(case: Case) -> Recipe:
    """Return the setting of the recorded step."""
    return Recipe(
        micro_batch_size=case.micro_batch_size,
        precision=case.precision,
        accumulation_steps=case.accumulation_steps,
        activation_checkpointing=case.activation_checkpointing,
        world_size=case.replicas,
    )


def workload_of(case: Case) -> Workload:
    """Build the recorded step."""
    parts = trainable(case)
    return Workload(
        model=functools.partial(_model, case, parts.model),
        batch=parts.batch,
        loss=parts.loss,
        optimizer=functools.partial(_optimizer, case.optimizer),
        grad_clip_norm=case.grad_clip_norm,
        channels_last=case.channels_last,
        shard=None if case.replicas == 1 else lambda model, recipe: shard(model, recipe.precision),
    )


def _model(case: Case, make: Callable[[], nn.Module]) -> nn.Module:
    model = in_benchmark_mode(make) if case.cudnn_benchmark else make()
    if case.compiled:
        model.compile(mode="reduce-overhead" if case.cuda_graphs else None)
    return model


def _optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return OPTIMIZERS[name]([each for each in parameters if each.requires_grad])


def _card(name: str) -> str | None:
    try:
        return find_card(name).name
    except DeviceError:
        return None
