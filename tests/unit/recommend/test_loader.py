"""What settings of a data loader mean for a plan."""

from __future__ import annotations

import pytest

from memplan.recommend.loader import LoaderSettings, loader_remarks
from memplan.units import MIB


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (LoaderSettings(workers=0, persistent_workers=True), "persistent_workers needs loader workers"),
        (LoaderSettings(workers=0, prefetch_factor=4), "prefetch_factor needs loader workers"),
        (LoaderSettings(workers=0), "the card waits while each batch is made"),
        (LoaderSettings(workers=9), "9 loader workers share 8 processors"),
        (LoaderSettings(workers=2, pin_memory=False), "without pin_memory"),
        (LoaderSettings(workers=8), "8 loader workers hold up to 16 batches of 64.00 MiB, 1.00 GiB of host memory"),
        (LoaderSettings(workers=4, prefetch_factor=8), "hold up to 32 batches of 64.00 MiB, 2.00 GiB of host memory"),
    ],
)
def test_each_rule_is_said(settings: LoaderSettings, part: str) -> None:
    assert part in " ".join(loader_remarks(settings, on_cuda=True, cpu_count=8, batch_bytes=64 * MIB))


@pytest.mark.parametrize(
    "settings",
    [
        LoaderSettings(),
        LoaderSettings(workers=0),
        LoaderSettings(workers=2, pin_memory=False, persistent_workers=True, prefetch_factor=2),
    ],
)
def test_nothing_is_said_where_no_rule_applies(settings: LoaderSettings) -> None:
    assert loader_remarks(settings, on_cuda=False, cpu_count=8, batch_bytes=64 * MIB) == ()


def test_what_is_not_known_is_not_judged() -> None:
    assert loader_remarks(LoaderSettings(workers=64), on_cuda=True, cpu_count=None, batch_bytes=None) == ()
