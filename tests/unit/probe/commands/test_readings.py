"""The measurement of a command trial, from events whose sums can be checked in the head."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.probe.commands.events import (
    BytesHeld,
    CardFigures,
    HookFailed,
    LoaderUse,
    OptimizerBuilt,
    StepEnded,
    StepsFinished,
)
from memplan.probe.commands.readings import (
    OutsideReadings,
    first_bad_loss,
    measure,
    notes_on,
    passes_per_step,
    samples_of_pass,
    warmup_of,
)
from memplan.recipe import Recipe
from memplan.units import MIB
from tests.making import ended_step


def step(number: int, *, duration_s: float = 0.5, peak_mib: int = 500, **facts: Any) -> StepEnded:
    return ended_step(
        step=number,
        duration_s=None if number == 1 else duration_s,
        resident_peak_bytes=peak_mib * MIB,
        resident_file_bytes=80 * MIB,
        **facts,
    )


def built(pid: int = 7) -> OptimizerBuilt:
    return OptimizerBuilt(pid=pid, resident_bytes=210 * MIB, parameters_bytes=10 * MIB)


def held(pid: int = 7) -> BytesHeld:
    return BytesHeld(
        pid=pid,
        optimizers=("AdamW",),
        parameters_bytes=10 * MIB,
        gradients_bytes=10 * MIB,
        optimizer_state_bytes=20 * MIB,
        learning_rate=0.1,
    )


def measured(*events, outside: OutsideReadings | None = None, accumulation_steps: int | None = 1):
    return measure(
        events,
        outside or OutsideReadings(),
        samples_of_pass=4,
        accumulation_steps=accumulation_steps,
        usual_context_bytes=300 * MIB,
    )


def test_on_the_cpu_the_parts_add_up_to_the_resident_peak() -> None:
    found = measured(built(), held(), *[step(each) for each in range(1, 7)])
    assert found.peak_process_bytes == found.peak_device_bytes == found.breakdown.total_bytes == 500 * MIB
    assert found.breakdown.context == 200 * MIB
    assert found.breakdown.temporaries == (500 - 200 - 10 - 10 - 20) * MIB
    assert found.peak_allocated_bytes == 300 * MIB
    assert found.peak_reserved_bytes is None
    assert found.steps_taken == 6
    assert found.learning_rate == 0.1


def test_a_third_of_the_steps_is_warm_up_but_two_at_least() -> None:
    assert [warmup_of(steps) for steps in (2, 3, 5, 9, 30)] == [1, 2, 2, 3, 10]


def test_samples_per_second_come_from_the_timed_steps_only() -> None:
    slow_start = [step(1), step(2, duration_s=60.0), step(3, duration_s=0.5), step(4, duration_s=0.5)]
    assert measured(built(), held(), *slow_start).samples_per_s == 4 / 0.5


def test_a_step_that_holds_skipped_ones_is_not_timed() -> None:
    steps = [step(1), step(2), step(3, duration_s=5.0, skipped=1), step(4)]
    assert measured(built(), held(), *steps).step_times_s == (0.5,)


def test_the_scripts_own_accumulation_counts_where_the_command_does_not_set_it() -> None:
    steps = [step(each, passes=3) for each in range(1, 5)]
    assert measured(built(), held(), *steps, accumulation_steps=None).samples_per_s == 4 * 3 / 0.5
    assert measured(built(), held(), *steps, accumulation_steps=2).samples_per_s == 4 * 2 / 0.5


def test_accumulation_that_a_script_does_not_do_trains_no_samples() -> None:
    steps = [step(each, passes=1) for each in range(1, 5)]
    assert measured(built(), held(), *steps, accumulation_steps=2).samples_per_s == 4 * 1 / 0.5
    several = [step(each, passes=1, optimizers=2) for each in range(1, 5)]  # what belongs to which is not known
    assert measured(built(), held(), *several, accumulation_steps=2).samples_per_s == 4 * 2 / 0.5


def test_passes_of_several_optimizers_are_no_accumulation() -> None:
    assert passes_per_step([step(each, passes=3, optimizers=2) for each in range(1, 5)]) == 1


def test_a_skipped_step_does_not_look_like_accumulation() -> None:
    assert passes_per_step([step(1), step(2, passes=2, skipped=1), step(3), step(4)]) == 1


@pytest.mark.parametrize(
    ("durations_s", "samples_per_s", "is_told"),
    [
        ((0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5), 2.0, True),  # two batches in an epoch
        ((2.0, 2.0, 0.5, 2.0, 2.0, 0.5, 2.0), 2.0, True),  # three
        ((2.0, 0.5, 0.5, 2.0, 0.5, 0.5, 0.5), 8.0, False),  # two lengths, but not by turns
        ((1.0, 1.2, 1.0, 1.2, 1.0, 1.2, 1.0), 4.0, False),  # by turns, but hardly
        ((0.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0), 2.0, False),  # once
    ],
)
def test_the_last_batch_of_an_epoch_does_not_say_how_fast_whole_ones_are(
    durations_s: tuple[float, ...], samples_per_s: float, *, is_told: bool
) -> None:
    warm_up = [step(each, duration_s=9.0) for each in (1, 2, 3)]
    steps = warm_up + [step(4 + place, duration_s=each) for place, each in enumerate(durations_s)]
    assert measured(built(), held(), *steps).samples_per_s == samples_per_s  # of four a step
    told = [each for each in notes_on(steps, Recipe(micro_batch_size=4)) if "take turns" in each]
    assert bool(told) is is_told


def test_the_first_step_tells_of_accumulation_where_there_is_no_other() -> None:
    assert passes_per_step([step(1, passes=16)]) == 16
    assert passes_per_step([step(1, passes=16), step(2, passes=4)]) == 4  # a first step may hold a warm-up


def test_replicas_add_their_samples_and_their_memory_but_share_their_libraries() -> None:
    steps = [step(each, pid=pid) for each in range(1, 5) for pid in (7, 8)]
    found = measured(built(7), built(8), held(7), held(8), *steps)
    assert found.samples_per_s == 2 * 4 / 0.5
    assert found.peak_process_bytes == (500 + 500 - 80) * MIB


def test_launchers_and_data_loader_workers_count_as_context() -> None:
    steps = [step(each) for each in range(1, 5)]
    found = measured(built(), held(), *steps, outside=OutsideReadings(other_processes_bytes=50 * MIB))
    assert found.peak_process_bytes == 550 * MIB
    assert found.breakdown.context == 250 * MIB


def card(reserved_peak_mib: int) -> CardFigures:
    return CardFigures(
        index=0,
        allocated_peak_bytes=600 * MIB,
        reserved_peak_bytes=reserved_peak_mib * MIB,
        reserved_bytes=640 * MIB,
        used_bytes=1000 * MIB,
        alloc_retries=1,
    )


def test_on_a_card_the_process_peak_is_the_reserved_one_and_what_the_driver_charges_beyond_it() -> None:
    steps = [step(each, card=card(700)) for each in range(1, 5)]
    outside = OutsideReadings(context_bytes={7: 400 * MIB}, others_on_card_bytes={7: 100 * MIB})
    found = measured(built(), held(), *steps, outside=outside)
    assert found.peak_allocated_bytes == 600 * MIB
    assert found.peak_reserved_bytes == 700 * MIB
    assert found.peak_process_bytes == found.breakdown.total_bytes == 1100 * MIB
    assert found.peak_device_bytes == 1200 * MIB
    assert found.breakdown.temporaries == (600 - 10 - 10 - 20) * MIB
    assert found.alloc_retries == 1


def test_of_several_replicas_the_one_on_the_fullest_card_counts() -> None:
    steps = [step(each, pid=pid, card=card(700)) for each in range(1, 5) for pid in (7, 8)]
    outside = OutsideReadings(context_bytes={7: 400 * MIB, 8: 300 * MIB}, others_on_card_bytes={8: 200 * MIB})
    found = measured(built(7), built(8), held(7), held(8), *steps, outside=outside)
    assert found.peak_process_bytes == 1000 * MIB
    assert found.peak_device_bytes == 1200 * MIB


def test_a_context_that_the_driver_does_not_tell_is_the_usual_one() -> None:
    steps = [step(each, card=card(700)) for each in range(1, 5)]
    assert measured(built(), held(), *steps).breakdown.context == 300 * MIB


def test_a_loss_counts_as_bad_once_the_warm_up_is_over() -> None:
    good, bad = [step(each) for each in (1, 2, 3, 4)], step(4, is_loss_finite=False)
    assert first_bad_loss(good) is None
    assert first_bad_loss([*good[:3], bad]) == 4
    assert first_bad_loss([step(1, is_loss_finite=False), *good[1:]]) is None
    assert first_bad_loss([step(each, is_loss_finite=None) for each in (1, 2, 3)]) is None


def test_a_script_that_does_something_else_than_its_recipe_is_noted() -> None:
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2)
    alike = [step(each, passes=2) for each in (1, 2, 3)]
    assert notes_on(alike, recipe) == ()
    assert notes_on([], recipe) == ()
    other = [step(each, pid=pid) for each in (1, 2, 3) for pid in (7, 8)]
    replicas, passes = notes_on([*other, HookFailed(pid=7, text="Traceback\nKeyError: 1")], recipe)[:2]
    assert replicas.startswith("processes that took optimizer steps: 2, replicas planned for: 1; ")
    assert passes.startswith("optimizer steps make fewer backward passes than asked for: ")
    assert notes_on([*other, HookFailed(pid=7, text="Traceback\nKeyError: 1")], recipe)[2].endswith(": KeyError: 1")


def test_several_passes_of_several_optimizers_are_no_missing_accumulation() -> None:
    steps = [step(each, passes=3, optimizers=2) for each in (1, 2, 3)]
    assert notes_on(steps, Recipe(4)) == ()


def test_a_script_that_splits_its_micro_batch_is_noted_and_trains_what_its_loader_makes() -> None:
    facts = {"asked": 4, "available": 400, "drops_last": False, "batches": 100, "since_first_s": None}
    loader = LoaderUse(number=0, begun=False, fetched=3, **facts)
    steps = [step(each, passes=3, loaders=(loader,)) for each in (1, 2, 3)]
    (note,) = notes_on(steps, Recipe(13))
    assert note.startswith("the script's data loader makes batches of 4 samples, not 13: it splits or bounds")
    assert [samples_of_pass(steps, Recipe(size)) for size in (4, 13)] == [4, 4]
    assert samples_of_pass(steps, Recipe(13, accumulation_steps=3)) == 13


@pytest.mark.parametrize(("fetched", "samples"), [(1, 4), (2, 8)])
def test_several_passes_over_one_batch_count_once(fetched: int, samples: int) -> None:
    facts = {"asked": 4, "available": 400, "drops_last": False, "batches": 100, "since_first_s": None}
    loader = LoaderUse(number=0, begun=False, fetched=fetched, **facts)
    steps = [step(each, passes=2, loaders=(loader,), duration_s=0.5) for each in (1, 2, 3, 4)]
    found = measured(built(), held(), *steps, accumulation_steps=None)
    assert found.samples_per_s == samples / 0.5
    (note,) = notes_on(steps, Recipe(4))
    assert ("several times over one batch" in note) is (fetched == 1)


def test_the_rest_of_an_epoch_is_not_taken_for_missing_accumulation() -> None:
    steps = [step(number, passes=passes) for number, passes in enumerate((4, 3, 4, 3), 1)]
    assert notes_on(steps, Recipe(4, accumulation_steps=4)) == ()
    assert len(notes_on(steps, Recipe(4, accumulation_steps=5))) == 1


def test_backward_passes_that_stand_for_steps_are_noted_and_not_taken_for_missing_accumulation() -> None:
    (note,) = notes_on([step(each, optimizers=0) for each in (1, 2, 3)], Recipe(4, accumulation_steps=2))
    assert note.endswith("each backward pass counts as a step")


def test_accumulation_that_a_warm_up_changes_from_trial_to_trial_is_noted_in_the_same_words() -> None:
    trials = [
        notes_on([step(each, passes=passes) for each in (1, 2, 3)], Recipe(size)) for size, passes in ((4, 6), (16, 4))
    ]
    assert trials[0] == trials[1]
    assert trials[0][0].startswith("optimizer steps make more backward passes than asked for, each counted ")


def test_what_the_search_for_algorithms_held_in_the_first_step_is_told() -> None:
    recipe, later = Recipe(micro_batch_size=4), [step(2, card=card(700)), step(3, card=card(710))]
    (note,) = notes_on([step(1, card=card(900)), *later], recipe)
    assert "held up to 900.0 MiB in the first step" in note
    assert notes_on([step(1, card=card(600)), *later], recipe) == ()


@pytest.mark.parametrize(
    ("peaks_mib", "is_told"),
    [
        ((400, 500, 500, 500, 500, 500), False),
        ((400, 500, 500, 500, 500, 520), True),
        ((400, 500, 500, 500, 510, 515), False),  # 3 %
        ((400, 500, 520, 520, 520, 520), False),  # settled by the half
        ((400, 500, 520), False),
    ],
)
def test_a_peak_that_still_rises_is_told(peaks_mib: tuple[int, ...], is_told: bool) -> None:
    steps = [step(number, peak_mib=peak) for number, peak in enumerate(peaks_mib, start=1)]
    notes = notes_on(steps, Recipe(4))
    assert any(note.startswith("the peak still rose") for note in notes) is is_told
    on_card = [step(number, card=card(peak)) for number, peak in enumerate(peaks_mib, start=1)]
    assert any(note.startswith("the peak still rose") for note in notes_on(on_card, Recipe(4))) is is_told


def test_one_step_is_no_measurement() -> None:
    assert measured(built(), step(1)) is None
    assert measured() is None


def test_the_loss_scale_is_the_one_after_the_last_step() -> None:
    steps = [step(each) for each in range(1, 5)]
    assert measured(built(), *steps, StepsFinished(pid=7, is_finite=True, loss_scale=1024.0)).loss_scale == 1024.0
