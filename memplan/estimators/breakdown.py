"""What is alive at one instant of a timeline: by component, by module, by operator."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from memplan.results import Component, PeakShare

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memplan.estimators.step_trace import Timeline

_SHARES_KEPT = 10
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_NUMBER_WITHIN = re.compile(r"(?<![^.])\d+(?=\.)")


def live_blocks_at(timeline: Timeline, event: int) -> npt.NDArray[np.int32]:
    """Return the blocks alive right after an event."""
    blocks = timeline.event_blocks[: event + 1]
    allocates = timeline.event_allocates[: event + 1]
    return np.setdiff1d(blocks[allocates], blocks[~allocates])


def component_bytes(
    timeline: Timeline, live: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]
) -> dict[Component, int]:
    """Sum the requested bytes of the live blocks by component."""
    sums = np.bincount(timeline.components[live], weights=sizes[live], minlength=len(Component))
    return {component: int(sums[component]) for component in Component}


def largest_shares(
    names: Sequence[str], labels: npt.NDArray[np.int32], live: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]
) -> tuple[PeakShare, ...]:
    """Return the largest holders among the live blocks, largest first; holders of one name are added up."""
    sums = np.bincount(labels[live], weights=sizes[live], minlength=len(names))
    held_bytes: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    for each in np.flatnonzero(sums).tolist():
        held_bytes[names[each]] += int(sums[each])
        holders[names[each]] += 1
    largest = held_bytes.most_common(_SHARES_KEPT)
    return tuple(PeakShare(name=name, held_bytes=held, holder_count=holders[name]) for name, held in largest)


def repeated_paths(paths: Sequence[str]) -> list[str]:
    """Write the paths of modules that repeat each other alike: ``layers.3.mlp`` becomes ``layers.*.mlp``.

    A number at the end stays, because it distinguishes the members of a sequence, unless they have parts of their own
    that are written alike: then ``layers.3`` becomes ``layers.*`` too. A path that is alone stays.
    """
    composed = {path[: dot.start()] for path in paths for dot in re.finditer(r"\.", path)}
    alike = ["*".join((_NUMBER if path in composed else _NUMBER_WITHIN).split(path)) for path in paths]
    counts = Counter(alike)
    return [pattern if counts[pattern] > 1 else path for path, pattern in zip(paths, alike, strict=True)]
