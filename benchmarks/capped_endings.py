"""How recorded training steps end where the allocator may hold no more than a smaller card has, and as predicted.

    python benchmarks/capped_endings.py [--truth FOLDER]

Rows are the records of ``truth.py`` under ``set_per_process_memory_fraction``. What is printed of each: how it ended,
how often PyTorch returned its cached memory to the driver to go on, and the reserved peak, recorded and predicted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from published.recorded import recipe_of, workload_of
from record_files import values_in
from truth_cases import Case

from memplan.devices.cards import find_card
from memplan.estimators import trace_step
from memplan.estimators.allocators.allocator_config import AllocatorConfig, SegmentOrder
from memplan.estimators.figures import outcome_of, replay_under_limit
from memplan.results import OutcomeKind
from memplan.units import GIB, MIB
from memplan.workload import PickledWorkload

if TYPE_CHECKING:
    from memplan.estimators.allocators.caching_allocator import AllocatorPeaks

HERE = Path(__file__).parent


def predicted(case: Case, card: str, torch_version: str) -> AllocatorPeaks:
    """Replay a case's step on a card of which the allocator may hold a part."""
    payload = cloudpickle.dumps(workload_of(case))
    source = PickledWorkload(payload=payload, fingerprint=case.key, search_path=tuple(sys.path))
    trace = trace_step(source, recipe_of(case), find_card(card))
    config = AllocatorConfig(segment_order=SegmentOrder.of_torch(torch_version))
    timeline = trace.timeline_at(case.micro_batch_size)
    assert timeline is not None  # noqa: S101 - it is traced at this size, if that makes a difference
    assert case.cap_bytes is not None  # noqa: S101 - only these are asked about
    return replay_under_limit(timeline, case.micro_batch_size, config, limit_bytes=case.cap_bytes)


def ending_of(record: dict[str, Any]) -> OutcomeKind:
    """Say how a recorded step ended."""
    if record["ending"] != "fits":
        return OutcomeKind.DEVICE_OUT_OF_MEMORY
    return OutcomeKind.ALLOCATOR_RETRIES if record["alloc_retries"] else OutcomeKind.FITS


def main() -> None:
    """Predict every capped record, and count how many end as predicted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=HERE / "truth")
    same, all_cases = 0, 0
    for record in values_in(parser.parse_args().truth, "records"):
        case = Case(**record["case"])
        if case.cap_bytes is None:
            continue
        peaks = predicted(case, record["provenance"]["card"], record["provenance"]["torch"])
        recorded, expected = ending_of(record), outcome_of(peaks)
        reserved_bytes = max(each["peak_reserved_bytes"] for each in record["phases"])
        print(
            f"{case.key:<40} {case.cap_bytes // GIB:>3} GiB   "
            f"{recorded:<24} {record['alloc_retries']:>3} retries {reserved_bytes // MIB:>6} MiB   predicted "
            f"{expected:<24} {peaks.alloc_retries:>3} retries {peaks.peak_reserved_bytes // MIB:>6} MiB",
            flush=True,
        )
        same, all_cases = same + (recorded is expected), all_cases + 1
    print(f"{same} of {all_cases} end as predicted")


if __name__ == "__main__":
    main()
