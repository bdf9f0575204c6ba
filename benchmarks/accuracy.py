"""Predicted against measured: rebuild published and recorded runs, and score the estimates.

    python benchmarks/accuracy.py [--family NAME ...] [--only WORD] [--limit N] [--fresh] [--markdown FILE]

Rows come from ``published/data`` (facts others measured, each with its source) and from records of ``truth.py``. Every
prediction is kept in ``--records``; a row is predicted again only where the estimator or a library has changed since,
or with ``--fresh``. Nothing here is fitted to the rows: the loops are rebuilt as the sources describe them.

Needs torchvision, timm, transformers, mmaction2, mmsegmentation and mmcv (see ``published/openmmlab.py``), litgpt with
lightning and, for one row, monai with einops; of transformers, the xMem rows want 4.51 (see ``published/xmem.py``).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from published import litgpt, openmmlab, operators, optimum, recorded, timm_rows, xmem
from published.report import print_scores, row_line, write_markdown

from memplan.devices.cards import find_card
from memplan.errors import MemplanError
from memplan.estimators import StepTrace, estimate, trace_step
from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.process_allocators import ProcessAllocators
from memplan.estimators.figures import peaks_with_searches, replay_under_limit
from memplan.results import Component, Estimate, OutcomeKind
from memplan.units import MIB
from memplan.workload import PickledWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from published.rows import Row

    from memplan.devices.cards import DeviceSpec

HERE = Path(__file__).parent
LIBRARIES = ("torch", "transformers", "timm", "torchvision")


def all_rows(truth: Path) -> Iterator[Row]:
    """Yield every row, those of one trace together."""
    yield from xmem.rows()
    yield from operators.notebook_rows()
    yield from operators.volume_rows()
    yield from operators.liger_rows()
    yield from openmmlab.action_rows()
    yield from openmmlab.segmentation_rows()
    yield from optimum.rows()
    yield from litgpt.rows()
    yield from timm_rows.study_rows()
    yield from timm_rows.benchmark_rows()
    yield from recorded.rows(truth)


@functools.cache
def setting() -> str:
    """Digest of what a prediction depends on: the estimator's source and tables, and the models' libraries."""
    import memplan

    folders = (Path(memplan.__file__).parent / "estimators", HERE / "published")
    files = [file for folder in folders for kind in ("*.py", "*.npz") for file in sorted(folder.rglob(kind))]
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]
    return " ".join([digest, *(f"{name}={_version(name)}" for name in LIBRARIES)])


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "none"


_last: dict[str, StepTrace] = {}


def traced(row: Row) -> StepTrace:
    """Trace a row's step, or return the trace of the row before if it is the same step at another size."""
    if row.trace_key not in _last:
        _last.clear()
        payload = cloudpickle.dumps(row.workload())
        source = PickledWorkload(payload=payload, fingerprint=row.trace_key, search_path=tuple(sys.path))
        trace = trace_step(source, row.recipe, find_card(row.device))
        _last[row.trace_key] = trace if row.counts_blas_workspaces else without_workspaces(trace)
    return _last[row.trace_key]


def without_workspaces(trace: StepTrace) -> StepTrace:
    """Leave out what a library kept outside the caching allocator in the version of a run."""
    timelines = (
        replace(each, size_terms=np.where(each.components == Component.WORKSPACES, 0.0, each.size_terms))
        for each in trace.timelines
    )
    return replace(trace, timelines=tuple(timelines))


def predicted(row: Row) -> dict[str, Any]:
    """Predict a row; where the estimate fails, say why."""
    started = time.monotonic()
    kept: dict[str, Any] = {"key": row.key, "setting": setting()}
    try:
        trace = traced(row)
        config = replace(AllocatorConfig.parse(row.allocator_settings), segment_order=row.segment_order)
        device = find_card(row.device)
        for size in filter(None, (row.recipe.micro_batch_size, row.failed_micro_batch_size)):
            found = estimate(
                trace,
                micro_batch_size=size,
                device=device,
                allocators=ProcessAllocators(cuda=config),
            )
            allocated_bytes, reserved_bytes = found.peak_allocated_bytes, reserved_on_card(trace, found, device, config)
            timeline = trace.timeline_at(size) if row.reads_first_step else None
            searched = None if timeline is None else peaks_with_searches(timeline, size, config)
            if searched is not None:
                allocated_bytes = max(allocated_bytes, searched.peak_allocated_bytes)
                reserved_bytes = max(reserved_bytes, searched.peak_reserved_bytes)
            kept[str(size)] = {
                "allocated_mib": allocated_bytes / MIB,
                "reserved_mib": reserved_bytes / MIB,
                "context_mib": found.breakdown.context / MIB,
            }
        kept |= {"method": found.method, "uncounted": found.uncounted}
    except MemplanError as error:
        kept["error"] = str(error)
    return {**kept, "seconds": round(time.monotonic() - started, 2)}


def reserved_on_card(trace: StepTrace, found: Estimate, device: DeviceSpec, config: AllocatorConfig) -> int:
    """Return the reserved peak in bytes as the card shows it, on which PyTorch returns cached memory to go on."""
    size = found.recipe.micro_batch_size
    timeline = trace.timeline_at(size)
    if timeline is None or found.outcome is not OutcomeKind.ALLOCATOR_RETRIES:
        return found.peak_reserved_bytes
    limit_bytes = device.total_bytes - found.breakdown.context
    return replay_under_limit(timeline, size, config, limit_bytes=limit_bytes).peak_reserved_bytes


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of each row."""
    if not path.exists():
        return {}
    return {record["key"]: record for record in map(json.loads, path.read_text().splitlines())}


def main() -> None:
    """Predict what is asked for, then print the scores of all that is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", nargs="*")
    parser.add_argument("--only", help="rows whose key or model contains this")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--scores", action="store_true", help="predict nothing, score what is recorded")
    parser.add_argument("--truth", type=Path, default=HERE / "truth")
    parser.add_argument("--records", type=Path, default=HERE / "records" / "accuracy.jsonl")
    parser.add_argument("--markdown", type=Path, help="write the rows as a table to this file")
    options = parser.parse_args()
    rows = [
        row
        for row in all_rows(options.truth)
        if (not options.family or row.family in options.family)
        and (not options.only or options.only in row.key + row.model)
    ][: options.limit]
    records = read_records(options.records)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    for row in rows if not options.scores else ():
        if options.fresh or records.get(row.key, {}).get("setting") != setting():
            records[row.key] = predicted(row)
            with options.records.open("a") as file:
                file.write(json.dumps(records[row.key]) + "\n")
        print(row_line(row, records[row.key]), flush=True)
    done = [(row, records[row.key]) for row in rows if row.key in records]
    print_scores(done)
    if options.markdown:
        write_markdown(options.markdown, done)


if __name__ == "__main__":
    main()
