"""What settings of a data loader mean for a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.recommend.data_loader import LoaderSettings, LoaderSurroundings, better_settings, loader_remarks
from memplan.results import LoaderSpeed
from memplan.units import GIB, MIB

ON_CARD = LoaderSurroundings(on_cuda=True, cpu_count=8, batch_bytes=64 * MIB)
ON_CPU = LoaderSurroundings(on_cuda=False, cpu_count=8, batch_bytes=64 * MIB)
SMALL_HOST = LoaderSurroundings(on_cuda=False, cpu_count=8, batch_bytes=64 * MIB, host_bytes=1 * GIB)  # 8 batches


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
    assert part in " ".join(loader_remarks(settings, ON_CARD))


@pytest.mark.parametrize(
    "settings",
    [
        LoaderSettings(),
        LoaderSettings(workers=0),
        LoaderSettings(workers=2, pin_memory=False, persistent_workers=True, prefetch_factor=2),
    ],
)
def test_nothing_is_said_where_no_rule_applies(settings: LoaderSettings) -> None:
    assert loader_remarks(settings, ON_CPU) == ()


@pytest.mark.parametrize(
    ("made_per_s", "workers", "trained_per_s", "said"),
    [
        (
            100.0,
            2,
            400.0,
            "makes 100.0 samples/s with 2 workers: steps that could take 400.0 wait for it",
        ),
        (
            100.0,
            1,
            400.0,
            "makes 100.0 samples/s with 1 worker: steps that could take 400.0 wait for it",
        ),
        (
            300.0,
            0,
            100.0,
            (
                "without loader workers each batch is made between steps: 300.0 samples/s of the loader and 100.0 of "
                "the steps come to 75.0"
            ),
        ),
    ],
)
def test_a_loader_that_keeps_the_steps_waiting_is_told(
    made_per_s: float, workers: int, trained_per_s: float, said: str
) -> None:
    speed = LoaderSpeed(samples_per_s=made_per_s, workers=workers)
    around = replace(ON_CPU, speed=speed, trained_samples_per_s=trained_per_s)
    (remark,) = loader_remarks(LoaderSettings(), around)
    assert said in remark


@pytest.mark.parametrize(("made_per_s", "workers"), [(91.0, 2), (901.0, 0)])
def test_a_loader_that_leaves_more_than_nine_tenths_of_the_speed_is_fast_enough(
    made_per_s: float, workers: int
) -> None:
    around = replace(ON_CARD, speed=LoaderSpeed(samples_per_s=made_per_s, workers=workers), trained_samples_per_s=100.0)
    assert loader_remarks(LoaderSettings(workers=workers), around) == ()


def test_a_loader_is_not_compared_with_steps_that_were_not_run() -> None:
    around = replace(ON_CPU, speed=LoaderSpeed(samples_per_s=1.0, workers=0))
    assert loader_remarks(LoaderSettings(), around) == ()


def test_what_is_not_known_is_not_judged() -> None:
    assert loader_remarks(LoaderSettings(workers=64), LoaderSurroundings(on_cuda=True)) == ()


@pytest.mark.parametrize(
    ("around", "settings", "better"),
    [
        (ON_CPU, LoaderSettings(), LoaderSettings()),
        (ON_CPU, LoaderSettings(workers=0), LoaderSettings(workers=0)),
        (ON_CPU, LoaderSettings(workers=9), LoaderSettings(workers=8, persistent_workers=True)),
        (ON_CPU, LoaderSettings(pin_memory=False), LoaderSettings(pin_memory=False)),
        (ON_CARD, LoaderSettings(pin_memory=False), LoaderSettings(pin_memory=True)),
        (
            ON_CPU,
            LoaderSettings(workers=0, persistent_workers=True),
            LoaderSettings(workers=0, persistent_workers=False),
        ),
        (ON_CPU, LoaderSettings(persistent_workers=False), LoaderSettings(persistent_workers=False)),
        (SMALL_HOST, LoaderSettings(workers=8), LoaderSettings(workers=4, persistent_workers=True)),
        (
            SMALL_HOST,
            LoaderSettings(workers=2, prefetch_factor=16),
            LoaderSettings(workers=2, prefetch_factor=4, persistent_workers=True),
        ),
        (
            SMALL_HOST,
            LoaderSettings(workers=8, prefetch_factor=1),
            LoaderSettings(workers=8, prefetch_factor=1, persistent_workers=True),
        ),
        (
            LoaderSurroundings(on_cuda=False, batch_bytes=4 * GIB, host_bytes=1 * GIB),
            LoaderSettings(workers=8, prefetch_factor=4),
            LoaderSettings(workers=1, prefetch_factor=1, persistent_workers=True),
        ),
    ],
)
def test_each_line_of_the_table(around: LoaderSurroundings, settings: LoaderSettings, better: LoaderSettings) -> None:
    assert better_settings(settings, around) == better


_COUNTS = st.none() | st.integers(min_value=0, max_value=64)
_SWITCHES = st.none() | st.booleans()
_SIZES = st.none() | st.integers(min_value=0, max_value=8 * GIB)


@given(
    st.builds(
        LoaderSettings,
        workers=_COUNTS,
        pin_memory=_SWITCHES,
        prefetch_factor=_COUNTS,
        persistent_workers=_SWITCHES,
    ),
    st.builds(
        LoaderSurroundings,
        on_cuda=st.booleans(),
        cpu_count=st.none() | st.integers(min_value=1, max_value=64),
        batch_bytes=_SIZES,
        host_bytes=_SIZES,
    ),
)
def test_the_rules_never_raise_a_count_and_settle_at_once(settings: LoaderSettings, around: LoaderSurroundings) -> None:
    better = better_settings(settings, around)
    assert better_settings(better, around) == better
    assert not (better.persistent_workers and better.workers == 0)
    for before, after in (
        (settings.workers, better.workers),
        (settings.prefetch_factor, better.prefetch_factor),
    ):
        assert (before is None) == (after is None)
        assert before is None or after is None or (after <= before and bool(after) == bool(before))
