"""The order and number of live trials, on a simulated device whose peaks follow a straight line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.errors import NothingFitsError, PatchError, WorkloadError
from memplan.planning.trials.live import LiveSearch
from memplan.probe.trials import StepLimit
from memplan.progress import Notice
from memplan.recipe import Precision, Recipe
from memplan.recommend.band import Band
from memplan.results import OutcomeKind
from memplan.units import MIB
from tests.making import BAND, CPU, config_of, estimate, ignore, question, subject, trial

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec


class SimulatedDevice:
    """Answers like a trial session: 100 MiB, and so many MiB a sample for each precision; 2000
    means that it never steps, 3000 that the user's code raises, 4000 that the loss is not a number.

    There are so many ``samples``. Accumulation keeps gradients of ``mib_of_gradients`` beside the activations, a
    precision its ``mib_kept_in``.
    """

    def __init__(
        self,
        mib_per_sample: dict[Precision, int],
        *,
        mib_of_gradients: int = 0,
        step_s: dict[Precision, float] | None = None,
        mib_kept_in: dict[Precision, int] | None = None,
        samples: int = 10_000,
    ) -> None:
        self.mib_per_sample = mib_per_sample
        self.samples = samples
        self.step_s = step_s or {}
        self.mib_kept_in = mib_kept_in or {}
        self.mib_of_gradients = mib_of_gradients
        self._trials = []
        self.asked: list[tuple[Recipe, StepLimit | None]] = []

    def peak_mib(self, recipe: Recipe) -> int:
        kept = self.mib_of_gradients if recipe.accumulation_steps > 1 else 0
        kept += self.mib_kept_in.get(recipe.precision, 0)
        return 100 + kept + self.mib_per_sample[recipe.precision] * recipe.micro_batch_size

    @property
    def trials(self):
        return tuple(self._trials)

    def try_recipe(self, recipe: Recipe, purpose: str, *, step_limit=None):
        known = next((each for each in self._trials if each.recipe == recipe), None)
        if known is not None:
            return known
        self.asked.append((recipe, step_limit))
        peak_mib = self.peak_mib(recipe)
        kind, evidence = OutcomeKind.FITS, ""
        is_short = recipe.micro_batch_size > self.samples
        if is_short:
            kind, evidence = OutcomeKind.USER_ERROR, f"it has {self.samples}"
        elif self.mib_per_sample[recipe.precision] >= 4000:
            kind, evidence = OutcomeKind.NON_FINITE_LOSS, "losses nan"
        elif self.mib_per_sample[recipe.precision] >= 3000:
            kind, evidence = OutcomeKind.USER_ERROR, "expected Float but found Half"
        elif self.mib_per_sample[recipe.precision] >= 2000:
            kind, evidence = OutcomeKind.TIMEOUT, "step 1 still running"
        elif peak_mib > 1000:
            kind = OutcomeKind.HOST_OUT_OF_MEMORY
        made = trial(
            recipe.micro_batch_size,
            peak_mib if peak_mib <= 1000 and not is_short else None,
            number=len(self._trials) + 1,
            purpose=purpose,
            precision=recipe.precision,
            accumulation_steps=recipe.accumulation_steps,
            kind=kind,
            evidence=evidence,
        )
        if is_short:
            made = replace(made, outcome=replace(made.outcome, available_samples=self.samples))
        step_s = self.step_s.get(recipe.precision)
        if step_s is not None and made.outcome.measurement is not None:
            measured = replace(made.outcome.measurement, step_times_s=(2 * step_s, step_s))
            made = replace(made, outcome=replace(made.outcome, measurement=measured))
        self._trials.append(replace(made, recipe=recipe))
        return self._trials[-1]


class Prediction:
    """Answers like traces: right, or off by a factor."""

    def __init__(self, device: SimulatedDevice, factor: float = 1.0, samples: int | None = None) -> None:
        self._device = device
        self._factor = factor
        self._samples = samples

    def training_samples(self, recipe: Recipe) -> int | None:
        return self._samples

    def learn(self, recipe, measured) -> None:
        del recipe, measured

    def of_if_traceable(self, recipe: Recipe):
        return estimate(100, recipe) if self._factor else None

    def expected_process_bytes(self, recipe: Recipe) -> int:
        return round((100 + self._factor * (self._device.peak_mib(recipe) - 100)) * MIB)


def search_on(
    device: SimulatedDevice,
    *,
    current: Recipe | None = None,
    config: UserConfig | None = None,
    factor: float = 1.0,
    band: Band = BAND,
    on: DeviceSpec = CPU,
    samples: int | None = None,
    **options: object,
) -> LiveSearch:
    asked = question(subject(current or Recipe(micro_batch_size=4), config), device=on, band=band, **options)
    return LiveSearch(asked, device, Prediction(device, factor, samples), ignore)


def sizes_of(device: SimulatedDevice, precision: Precision) -> list[int]:
    """Sizes that were searched; accumulation and a smaller size are shown afterwards."""
    plain = [each for each in device.trials if each.purpose not in ("accumulation", "smaller size")]
    return [each.recipe.micro_batch_size for each in plain if each.recipe.precision is precision]


def smaller_sizes(device: SimulatedDevice) -> list[int]:
    return [each.recipe.micro_batch_size for each in device.trials if each.purpose == "smaller size"]


def test_each_precision_takes_the_users_size_and_one_in_the_band() -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.BF16: 25})
    search_on(device, precisions=(Precision.FP32, Precision.BF16)).compare()
    assert sizes_of(device, Precision.FP32) == [4, 12]  # 100 + 12 * 50 = 700, the nearest below 0.9 * 800
    assert sizes_of(device, Precision.BF16) == [4, 24]  # 100 + 24 * 25 = 700


def test_no_size_is_tried_that_the_training_set_cannot_fill() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search_on(device, samples=9, precisions=(Precision.FP32,)).compare()
    assert sizes_of(device, Precision.FP32) == [4, 9]


def test_where_a_trial_finds_too_few_samples_all_of_them_are_tried_and_no_more_in_any_precision() -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.BF16: 25}, samples=9)
    search = search_on(device, precisions=(Precision.FP32, Precision.BF16))
    search.compare()
    assert sizes_of(device, Precision.FP32) == [4, 12, 9]
    assert sizes_of(device, Precision.BF16) == [4, 9]
    assert search.cap.reason == "The training set has 9 samples: they fill no larger micro-batch."


def test_a_current_size_of_more_samples_than_there_are_ends_the_plan() -> None:
    device = SimulatedDevice({Precision.FP32: 50}, samples=3)
    with pytest.raises(WorkloadError, match="it has 3"):
        search_on(device).compare()


def test_a_wrong_slope_is_corrected_with_one_more_trial() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    chosen = search_on(device, factor=0.7, precisions=(Precision.FP32,)).compare().chosen
    assert BAND.place(chosen.outcome.measurement.peak_device_bytes).value == "in the band"
    assert len(sizes_of(device, Precision.FP32)) == 3


def test_a_precision_that_never_steps_costs_one_trial_and_is_dropped_with_its_reason() -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.FP16: 2000})
    found = search_on(device, precisions=(Precision.FP32, Precision.FP16)).compare()
    assert sizes_of(device, Precision.FP16) == [4]
    verdict = found.verdicts[-1]
    assert (verdict.best, verdict.remark) == (None, "too slow here: step 1 still running")


@pytest.mark.parametrize("mib_per_sample", [2000, 100], ids=["too slow to end", "as fast as fp32"])
def test_a_precision_that_the_processor_does_not_multiply_is_no_faster_for_that(mib_per_sample: int) -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.FP16: mib_per_sample})
    cpu = replace(CPU, half_formats=("bf16",))
    verdicts = search_on(device, on=cpu, precisions=(Precision.FP32, Precision.FP16)).compare().verdicts
    assert verdicts[1].remark.endswith(
        "no faster, because the CPU has no instructions for fp16 and computes it by way of fp32"
    )


def test_a_precision_that_is_many_times_slower_is_compared_and_not_searched() -> None:
    peaks = {Precision.FP32: 50, Precision.FP16: 25, Precision.BF16: 25}
    device = SimulatedDevice(peaks, step_s={Precision.FP16: 2.0, Precision.BF16: 1.4})  # fp32 takes 0.5 s
    found = search_on(device, precisions=(Precision.FP16, Precision.BF16)).compare()
    assert sizes_of(device, Precision.FP16) == [4]
    assert len(sizes_of(device, Precision.BF16)) == 2
    remark = found.verdicts[1].remark
    assert remark.endswith("; a step takes 4.0 times as long as in fp32: no larger size was tried")


def test_a_held_global_batch_is_met_exactly_by_every_candidate() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    chosen = search_on(device, precisions=(Precision.FP32,), global_batch_size=48).compare().chosen
    recipe = chosen.recipe
    assert (recipe.micro_batch_size, recipe.accumulation_steps) == (12, 4)  # 100 + 12 * 50 = 700; 16 would need 900


def test_a_split_that_needs_more_because_gradients_stay_gives_way_to_a_smaller_one() -> None:
    device = SimulatedDevice({Precision.FP32: 150}, mib_of_gradients=300)
    current = Recipe(micro_batch_size=4)  # 700 alone, but 1000 as 4 x 4
    search = search_on(device, current=current, precisions=(Precision.FP32,), global_batch_size=16)
    recipe = search.compare().chosen.recipe
    assert (recipe.micro_batch_size, recipe.accumulation_steps) == (2, 8)  # 100 + 300 + 300


def test_a_step_that_cannot_be_traced_is_searched_from_its_readings() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    chosen = search_on(device, factor=0.0, precisions=(Precision.FP32,)).compare().chosen
    assert BAND.place(chosen.outcome.measurement.peak_device_bytes).value == "in the band"


def test_a_half_precision_config_is_compared_with_fp32_all_the_same() -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.BF16: 25})
    current = Recipe(micro_batch_size=4, precision="bf16")
    found = search_on(device, current=current, precisions=(Precision.BF16, Precision.FP32)).compare()
    assert found.verdicts[0].loss_deviation == 0.0


def test_a_precision_that_the_users_code_cannot_run_is_dropped_with_its_error() -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.FP16: 3000})
    found = search_on(device, precisions=(Precision.FP32, Precision.FP16)).compare()
    assert found.verdicts[-1].remark == "user error: expected Float but found Half"
    assert found.chosen.recipe.precision is Precision.FP32


def test_a_current_recipe_that_the_users_code_cannot_run_ends_the_plan() -> None:
    device = SimulatedDevice({Precision.FP32: 3000})
    with pytest.raises(WorkloadError, match="expected Float but found Half"):
        search_on(device).try_current()


def test_the_exact_recipe_is_run_with_its_learning_rate_before_it_is_recommended() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search = search_on(device, precisions=(Precision.FP32,))
    chosen = search.compare().chosen.recipe
    final = search.confirm(chosen, lambda recipe: replace(recipe, learning_rate=0.5))
    assert final.recipe == replace(chosen, learning_rate=0.5)
    assert device.trials[-1] is final


def test_a_final_check_above_the_band_makes_the_recipe_smaller() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search = search_on(device, precisions=(Precision.FP32,))
    chosen = search.compare().chosen.recipe
    device.mib_per_sample[Precision.FP32] = 60  # 100 + 12 * 60 = 820, above 800; 11 samples need 760
    final = search.confirm(chosen, lambda recipe: replace(recipe, learning_rate=0.5))
    assert final.recipe.micro_batch_size == 11


def test_a_final_check_that_fails_for_another_reason_than_memory_makes_nothing_smaller() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search = search_on(device, current=Recipe(micro_batch_size=4, learning_rate=0.1), precisions=(Precision.FP32,))
    chosen = search.compare().chosen.recipe
    device.mib_per_sample[Precision.FP32] = 3000
    with pytest.raises(WorkloadError, match=r"user error: expected Float.*goes from 0.1 to 0.5 there; --lr-rule sqrt"):
        search.confirm(chosen, lambda recipe: replace(recipe, learning_rate=0.5))
    assert [each.purpose for each in device.trials].count("final check") == 1


def test_without_a_trace_the_slope_of_the_first_precision_serves_the_others() -> None:
    device = SimulatedDevice({Precision.FP32: 10, Precision.BF16: 10}, mib_kept_in={Precision.BF16: 200})
    search_on(device, factor=0.0, precisions=(Precision.FP32, Precision.BF16)).compare()
    (landed,) = [each for each in device.trials if each.recipe.precision == "bf16" and each.purpose == "in the band"]
    assert 600 <= device.peak_mib(landed.recipe) <= 800


@pytest.mark.parametrize("unwritable", [Precision.BF16, Precision.FP32])
def test_a_precision_that_a_copy_of_the_config_cannot_say_is_left_out_unless_it_is_the_users(
    monkeypatch: pytest.MonkeyPatch, unwritable: Precision
) -> None:
    device = SimulatedDevice({Precision.FP32: 50, Precision.BF16: 25})
    run = device.try_recipe

    def try_recipe(recipe: Recipe, purpose: str, **options: object):
        if recipe.precision is unwritable and purpose != "current recipe":
            raise PatchError("the config does not set it", where="x.py", hint="write a child")
        return run(recipe, purpose, **options)

    monkeypatch.setattr(device, "try_recipe", try_recipe)
    search = search_on(device, precisions=(Precision.FP32, Precision.BF16))
    if unwritable is Precision.FP32:
        with pytest.raises(PatchError):
            search.compare()
        return
    found = search.compare()
    assert found.chosen.recipe.micro_batch_size == 12
    assert [each.remark for each in found.verdicts][1] == "the config does not set it"


def test_a_config_that_cannot_say_accumulation_is_planned_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device, events = SimulatedDevice({Precision.FP32: 50}), []
    run = device.try_recipe

    def try_recipe(recipe: Recipe, purpose: str, **options: object):
        if purpose == "accumulation":
            raise PatchError("the config does not set it", where="x.py", hint="write a child")
        return run(recipe, purpose, **options)

    monkeypatch.setattr(device, "try_recipe", try_recipe)
    asked = question(subject(Recipe(micro_batch_size=4)), band=BAND, precisions=(Precision.FP32,))
    LiveSearch(asked, device, Prediction(device), events.append).compare()
    assert Notice(text="accumulation was not tried: the config does not set it") in events


def test_accumulation_is_shown_on_the_recommended_recipe() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    chosen = search_on(device, precisions=(Precision.FP32,)).compare().chosen
    assert device.trials[-1].recipe == replace(chosen.recipe, accumulation_steps=2)


def test_where_no_loss_is_finite_the_error_says_what_to_look_at() -> None:
    device = SimulatedDevice({Precision.FP32: 4000})
    with pytest.raises(WorkloadError, match=r"non-finite loss: losses nan; check the values in the batch"):
        search_on(device, precisions=(Precision.FP32,)).compare()


def test_where_one_sample_does_not_fit_the_error_says_what_it_would_take() -> None:
    device = SimulatedDevice({Precision.FP32: 950})
    with pytest.raises(NothingFitsError, match=r"nothing fits 1000\.0 MiB at max-util 0\.8.*budget of 1\.28 GiB"):
        search_on(device, precisions=(Precision.FP32,)).compare()


def test_where_no_precision_fits_each_is_named_with_what_it_needs() -> None:
    device = SimulatedDevice({Precision.FP32: 950, Precision.BF16: 900})
    with pytest.raises(
        NothingFitsError, match=r"fp32: micro-batch 1 .* 1\.03 GiB.*; bf16: micro-batch 1 .* 1000\.0 MiB"
    ):
        search_on(device, precisions=(Precision.FP32, Precision.BF16)).compare()


def test_where_nothing_fits_what_could_not_be_tried_is_named() -> None:
    device = SimulatedDevice({Precision.FP32: 950})
    with pytest.raises(NothingFitsError, match="; tf32 not tried: the CPU has no TF32 units"):
        search_on(device, precisions=(Precision.FP32, Precision.TF32)).compare()


def test_a_precision_in_which_a_configs_programs_do_not_train_on_the_cpu_is_not_tried_there(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "train_dataloader = dict(batch_size=4)\noptim_wrapper = dict(type='OptimWrapper')\n", name="x.py"
    )
    device = SimulatedDevice({Precision.FP32: 10, Precision.BF16: 5, Precision.FP16: 5})
    search = search_on(device, config=config, current=config.recipe)
    remarks = {each.precision: each.remark for each in search.compare().verdicts}
    assert remarks[Precision.BF16] == "mmengine does not train in bf16 on the CPU"
    assert {recipe.precision for recipe, _ in device.asked} == {Precision.FP32}


def test_no_size_above_the_largest_allowed_is_recommended_though_the_current_one_is() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    found = search_on(device, precisions=(Precision.FP32,), micro_batch_cap=3).compare()
    assert found.chosen.recipe.micro_batch_size <= 3
    assert sizes_of(device, Precision.FP32)[0] == 4  # what there is now is run all the same


def test_half_the_chosen_size_is_run_to_show_what_the_last_doubling_gains() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    chosen = search_on(device, precisions=(Precision.FP32,)).compare().chosen
    assert chosen.recipe.micro_batch_size == 12
    assert smaller_sizes(device) == [6]  # the smallest in the band is 10, hardly smaller


def test_a_half_in_the_band_that_is_as_fast_is_chosen() -> None:
    device = SimulatedDevice({Precision.FP32: 5})  # every size runs 10 samples/s; 100 + 5 * 124 = 720
    band = Band(total_bytes=1000 * MIB, min_utilisation=0.2, max_utilisation=0.8)
    search = search_on(device, precisions=(Precision.FP32,), band=band)
    assert search.compare().chosen.recipe.micro_batch_size == 62  # 410, as fast as 124


WIDE_BAND = Band(total_bytes=1000 * MIB, min_utilisation=0.5, max_utilisation=0.8)


def test_where_half_lies_below_the_band_the_smallest_size_in_it_is_run_and_chosen_if_as_fast() -> None:
    device = SimulatedDevice({Precision.FP32: 20})  # every size runs 10 samples/s
    found = search_on(device, precisions=(Precision.FP32,), band=WIDE_BAND).compare()
    assert sizes_of(device, Precision.FP32) == [4, 31]  # 100 + 31 * 20 = 720
    assert smaller_sizes(device) == [20]  # 500; half of 31 takes 400
    assert found.chosen.recipe.micro_batch_size == 20


def test_a_probe_of_one_recipe_runs_a_smaller_size_in_the_band_too_and_says_how_they_compare() -> None:
    device = SimulatedDevice({Precision.FP32: 20})
    found = search_on(device, band=WIDE_BAND).probe()
    assert (found.recipe.micro_batch_size, len(found.trials)) == (20, 3)
    assert found.remark == "micro-batch 31 lands in the band at 720.0 MiB; micro-batch 20 is as fast or faster"


def test_a_probe_of_one_recipe_runs_nothing_below_the_band_for_comparison() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    assert search_on(device).probe().recipe.micro_batch_size == 12
    assert smaller_sizes(device) == []


def test_of_a_held_global_batch_the_smallest_split_in_the_band_is_run() -> None:
    device = SimulatedDevice({Precision.FP32: 20})
    search_on(device, precisions=(Precision.FP32,), band=WIDE_BAND, global_batch_size=600).compare()
    assert sizes_of(device, Precision.FP32) == [4, 30]
    assert smaller_sizes(device) == [20]  # of 20, 24, 25 and 30


def test_where_a_run_of_about_half_is_there_no_other_is_made() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search_on(device, current=Recipe(micro_batch_size=7), precisions=(Precision.FP32,)).compare()
    assert smaller_sizes(device) == []


def test_a_larger_size_of_the_same_precision_that_hangs_is_given_up_soon() -> None:
    device = SimulatedDevice({Precision.FP32: 50})
    search_on(device, precisions=(Precision.FP32,)).compare()
    searched = next(each for each in device.asked if each[0].micro_batch_size == 12)
    assert searched[1] == StepLimit(limit_s=60.0, usual_s=1.5, usual_precision=Precision.FP32)  # 45 s are too short
