"""The search on a device that is present: each precision at its best micro-batch, then the exact recipe.

For each precision the user's own micro-batch is run first: it shows what the precision does to the losses on the same
data, and corrects the estimate. The micro-batch that the corrected estimate proposes is then confirmed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import NothingFitsError, PatchError, WorkloadError
from memplan.planning.candidate_precisions import candidate_precisions
from memplan.planning.evaluation_peak import evaluation_peak_notes
from memplan.planning.micro_batch_cap import MicroBatchCap, micro_batch_cap, within_data
from memplan.planning.trials.batch_sizes import BatchSizes
from memplan.planning.trials.measured_lines import measured_line
from memplan.planning.trials.neighbours import others_bytes
from memplan.planning.trials.step_limits import hopeless_slowdown, step_limit
from memplan.probe.search import Reading, ReadingKind, SearchTarget, find_micro_batch
from memplan.progress import Notice
from memplan.recipe import Precision
from memplan.recommend.band import Place, nothing_fits
from memplan.recommend.choice import EQUAL_THROUGHPUT, choose
from memplan.recommend.knee import missing_half, smaller_in_band
from memplan.recommend.number_formats import named_together, why_no_faster
from memplan.recommend.verdicts import judge
from memplan.results import OutcomeKind, PrecisionVerdict, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.planning.question import Question
    from memplan.planning.traces import Traces
    from memplan.planning.trials.session import TrialSession
    from memplan.probe.search import SearchResult
    from memplan.progress import Observer
    from memplan.recipe import Recipe
    from memplan.results import Trial

# How near the upper edge of the band to aim. On the CPU the heap of large batches varies: of the first proposals of 38
# searches of a dozen models, 24 landed in a band of 60 to 80 % when aimed at 0.97 of its upper edge, most others above
# it; at 0.9 of it 28 would have.
_AIM_SHARE = 0.97
_AIM_SHARE_ON_CPU = 0.9
# A recipe that peaks above the band when it is run again with its learning rate is made this much smaller.
_STEP_DOWN = 0.92
_CONFIRMATIONS = 3
_WHERE_NAN_COMES_FROM = "check the values in the batch, and the learning rate"
# Only against these could a smaller size help: memory, and steps that take too long.
_MAY_BE_OF_SIZE = frozenset(kind for kind in OutcomeKind if kind.is_too_large) | {OutcomeKind.TIMEOUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFindings:
    """What the trials came to.

    Args:
        chosen: the recommended trial, its learning rate not scaled yet.
        verdicts: one for each precision.
    """

    chosen: Trial
    verdicts: tuple[PrecisionVerdict, ...]


def _reading_of(trial: Trial) -> Reading:
    """Turn a trial into what the search needs to know of it."""
    measured, samples = trial.outcome.measurement, trial.outcome.available_samples
    peak_bytes = measured.peak_device_bytes if measured else None
    if samples is not None:
        return Reading(kind=ReadingKind.TOO_FEW_SAMPLES, available_samples=samples)
    if trial.fits:
        return Reading(kind=ReadingKind.FITS, peak_bytes=peak_bytes)
    kind = ReadingKind.FAILED if trial.failed_otherwise else ReadingKind.TOO_LARGE
    return Reading(kind=kind, peak_bytes=peak_bytes)


class LiveSearch:
    """The trials of one plan, each chosen by what the earlier ones showed."""

    def __init__(self, question: Question, session: TrialSession, traces: Traces, observer: Observer) -> None:
        self._question = question
        self._subject = question.subject
        self._request = question.request
        self._device = question.device
        self._band = question.band
        self._cap = micro_batch_cap(question, traces)
        self._session = session
        self._traces = traces
        self._observer = observer
        self._searches: dict[Precision, SearchResult] = {}
        self._slow: dict[Precision, str] = {}
        self._obstacles: dict[Precision, str | None] = {}

    def try_current(self) -> Trial:
        """Run the current recipe, and learn from it what the estimate could not know.

        Raises:
            WorkloadError: the user's code raised; ``detail`` holds its traceback.
        """
        trial = self._counting_samples(self._session.try_recipe(self._subject.current, self._subject.current_name))
        if trial.outcome.kind in (OutcomeKind.USER_ERROR, OutcomeKind.NEVER_STEPPED, OutcomeKind.TOO_FEW_STEPS):
            size = self._subject.current.micro_batch_size
            hint = f"the first trial runs micro-batch {size}; --batch-size N starts with another"
            is_given = self._subject.config is not None or not self._subject.is_command
            raise WorkloadError(trial.outcome.evidence, hint=None if is_given else hint, detail=trial.outcome.log_tail)
        if measured := trial.outcome.measurement:
            self._traces.learn(trial.recipe, measured)
        return trial

    @property
    def cap(self) -> MicroBatchCap:
        """The largest micro-batch that is considered, by what is asked for and by what trials showed of the data."""
        return self._cap

    @property
    def _sizes(self) -> BatchSizes:
        return BatchSizes(
            current=self._subject.current,
            global_batch_size=self._request.global_batch_size,
            largest=self._cap.size,
        )

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far, in order."""
        return self._session.trials

    @property
    def _others_bytes(self) -> int:
        """What others used on the device when that was last read."""
        known = (others_bytes(trial.outcome) for trial in reversed(self.trials))
        return next((each for each in known if each is not None), 0)

    def probe(self) -> ProbeResult:
        """Search the subject's own precision only.

        Raises:
            NothingFitsError: no micro-batch that was tried stays below the band's upper edge.
            WorkloadError: trials failed for another reason than memory, and none completed.
        """
        precision = self._subject.current.precision
        current = self.try_current()
        self._search(precision, current)
        first = self._choose()
        best = self._beside(self._smaller_in_band(first), first, current)
        found = self._searches[precision]
        size, remark = best.recipe.micro_batch_size, found.remark
        if size != found.best:
            remark = f"{remark}; micro-batch {size} is as fast or faster"
        return ProbeResult(best=best, trials=self.trials, reached_cap=found.reached_cap, remark=remark)

    def compare(self) -> LiveFindings:
        """Search every precision and choose.

        Raises:
            NothingFitsError: no recipe that was tried stays below the band's upper edge.
            WorkloadError: trials failed for another reason than memory, and none completed.
        """
        current = self.try_current()
        self._obstacles = candidate_precisions(self._question)
        for precision, obstacle in self._obstacles.items():
            if obstacle is None:
                self._obstacles[precision] = self._search_if_writable(precision, current)
        first = self._choose()
        smaller = self._smaller_in_band(first) or missing_half(first.recipe, self.trials, self._sizes.in_order())
        chosen = self._beside(smaller, first, current)
        self._try_accumulation(chosen.recipe)
        verdicts = [
            PrecisionVerdict(precision=precision, remark=obstacle)
            if obstacle is not None
            else self._judged(precision, chosen.recipe)
            for precision, obstacle in self._obstacles.items()
        ]
        return LiveFindings(chosen=chosen, verdicts=tuple(verdicts))

    def confirm(self, wanted: Recipe, scaled: Callable[[Recipe], Recipe]) -> Trial:
        """Run exactly the recipe that will be recommended; if it peaks above the band, a smaller one.

        Args:
            wanted: the chosen recipe.
            scaled: gives a recipe its learning rate.

        Raises:
            NothingFitsError: not even the smaller ones stay below the band's upper edge.
            WorkloadError: it fails for another reason than memory, such as a loss that diverges at the scaled rate.
        """
        sizes = [size for size in self._sizes.in_order() if size <= wanted.micro_batch_size]
        for _ in range(_CONFIRMATIONS):
            trial = self._session.try_recipe(scaled(self._sizes.at(wanted, sizes[-1])), "final check")
            if trial.fits and self._is_allowed(trial):
                return trial
            if not trial.fits and trial.outcome.kind not in _MAY_BE_OF_SIZE:
                raise self._unconfirmed(trial)
            smaller = [size for size in sizes if size <= sizes[-1] * _STEP_DOWN]
            if not smaller:
                break
            sizes = smaller
        raise self._failure()

    def _unconfirmed(self, trial: Trial) -> WorkloadError:
        """Say how the recommended recipe failed, although it ran before at another learning rate."""
        before, after = self._subject.current.learning_rate, trial.recipe.learning_rate
        rates = None if before is None or after is None or before == after else f"{before:g} to {after:g}"
        return WorkloadError(
            f"the final check of micro-batch {trial.recipe.micro_batch_size} ended as {trial.outcome.kind}: "
            f"{trial.outcome.evidence}",
            hint=rates and f"the learning rate goes from {rates} there; --lr-rule sqrt or none scales it less",
            detail=trial.outcome.log_tail,
        )

    def _is_allowed(self, trial: Trial) -> bool:
        measured = trial.outcome.measurement
        return measured is not None and self._band.place(measured.peak_device_bytes) is not Place.ABOVE

    def _judged(self, precision: Precision, chosen: Recipe) -> PrecisionVerdict:
        same = replace(self._subject.current, precision=Precision.FP32)
        reference = next((trial for trial in self.trials if trial.recipe == same and trial.fits), None)
        verdict = judge(precision, self.trials, chosen=chosen, reference=reference, band=self._band)
        why = why_no_faster(precision, self._device) if self._is_no_faster(verdict) else None
        remarks = (verdict.remark, self._slow.get(precision), why)
        return replace(verdict, remark="; ".join(filter(None, remarks)))

    def _is_no_faster(self, verdict: PrecisionVerdict) -> bool:
        if verdict.speed_ratio is not None:
            return verdict.speed_ratio < 1 + EQUAL_THROUGHPUT
        own = [trial for trial in self.trials if trial.recipe.precision is verdict.precision]
        return verdict.precision in self._slow or any(trial.outcome.kind is OutcomeKind.TIMEOUT for trial in own)

    def _search_if_writable(self, precision: Precision, reference: Trial) -> str | None:
        """Search a precision, or say why the config that its trials would read cannot be written.

        Raises:
            PatchError: it cannot be in the subject's own precision either.
        """
        try:
            self._search(precision, reference)
        except PatchError as error:
            if precision is self._subject.current.precision:
                raise
            return error.problem
        return None

    def _search(self, precision: Precision, reference: Trial) -> None:
        """Run the user's own micro-batch at a precision, then the one that lands in the band."""
        recipe = replace(self._subject.current, precision=precision)
        first = self._try(recipe, "same size", reference)
        reading = _reading_of(first)
        if reading.kind is ReadingKind.FAILED or self._is_too_slow(first, reference):
            return
        size = recipe.micro_batch_size
        found = find_micro_batch(
            lambda size: _reading_of(self._try(self._sizes.at(recipe, size), "in the band", reference)),
            self._predicted(recipe, first),
            SearchTarget(
                lower_bytes=self._band.lower_bytes,
                upper_bytes=self._band.upper_bytes,
                limit_bytes=self._band.total_bytes,
                aim_share=_AIM_SHARE_ON_CPU if self._device.kind is DeviceKind.CPU else _AIM_SHARE,
            ),
            sizes=self._sizes.in_order(),
            known={size: reading} if size in self._sizes.in_order() and self._sizes.at(recipe, size) == recipe else {},
        )
        self._searches[precision] = found
        if found.reached_cap:
            self._observer(Notice(text=f"{precision}: {found.remark}"))

    def _is_too_slow(self, first: Trial, reference: Trial) -> bool:
        """Whether a precision's first trial was too slow for larger ones to be worth it; kept as a remark."""
        slowdown = hopeless_slowdown(first, reference)
        if slowdown is None:
            return False
        said = f"a step takes {slowdown:.1f} times as long as in {reference.recipe.precision}: no larger size was tried"
        self._slow[first.recipe.precision] = said
        return True

    def _try(self, recipe: Recipe, purpose: str, reference: Trial) -> Trial:
        limit = step_limit(reference, recipe, may_pause=self._subject.is_command)
        return self._counting_samples(self._session.try_recipe(recipe, purpose, step_limit=limit))

    def _counting_samples(self, trial: Trial) -> Trial:
        """Consider no larger micro-batch than a trial shows the data to fill."""
        if (samples := trial.outcome.available_samples) is not None:
            self._cap = within_data(self._cap, samples, world_size=1)  # the batch function is one replica's
        return trial

    def _predicted(self, recipe: Recipe, first: Trial) -> Callable[[int], float]:
        """Return the device peak in bytes that is expected of a recipe at a micro-batch."""
        if self._traces.of_if_traceable(recipe) is None:
            return measured_line(first, self.trials)
        if self._request.global_batch_size is not None:
            recipe = replace(recipe, accumulation_steps=2)  # any number above 1 keeps the gradients
        others_bytes = self._others_bytes

        @functools.cache
        def peak_at(size: int) -> float:
            return self._traces.expected_process_bytes(recipe.with_micro_batch_size(size)) + others_bytes

        return peak_at

    def _choose(self) -> Trial:
        chosen = choose(self._sizes.candidates(self.trials), self._band, current=self._subject.current)
        if chosen is None:
            raise self._failure()
        return chosen

    def _smaller_in_band(self, chosen: Trial) -> int | None:
        recipe = chosen.recipe
        found = self._searches.get(recipe.precision)
        smallest_inside = found.smallest_inside if found else None
        return smaller_in_band(recipe, self.trials, self._sizes.in_order(), smallest_inside)

    def _beside(self, micro_batch_size: int | None, chosen: Trial, reference: Trial) -> Trial:
        """Run a smaller size, if any, beside the chosen one, and choose again."""
        if micro_batch_size is None:
            return chosen
        self._try(self._sizes.at(chosen.recipe, micro_batch_size), "smaller size", reference)
        return self._choose()

    def _try_accumulation(self, recipe: Recipe) -> None:
        """Show what accumulation does to the recommended recipe, where nothing that was tried shows it."""
        if any(trial.recipe.accumulation_steps > 1 for trial in self._session.trials):
            return
        accumulated = replace(recipe, accumulation_steps=2)
        if self._subject.is_command and self._subject.obstacle(accumulated) is not None:
            return
        try:
            self._session.try_recipe(accumulated, "accumulation")
        except PatchError as error:
            self._observer(Notice(text=f"accumulation was not tried: {error.problem}"))

    def _failure(self) -> NothingFitsError | WorkloadError:
        trials = self._session.trials
        if not any(trial.outcome.kind.is_too_large or trial.fits for trial in trials):
            worst = trials[-1].outcome
            said = f"no trial completed; the last: {worst.kind}: {worst.evidence}"
            hint = _WHERE_NAN_COMES_FROM if worst.kind is OutcomeKind.NON_FINITE_LOSS else None
            return WorkloadError(said, hint=hint, detail=worst.log_tail)
        remarks = {precision: each.remark for precision, each in self._searches.items() if each.best is None}
        needed = min((search.needed_bytes for search in self._searches.values() if search.needed_bytes), default=None)
        why = named_together("", remarks) if len(remarks) > 1 else list(remarks.values())
        why = why or ["every trial is above the band"]
        why += named_together("not tried", {each: why for each, why in self._obstacles.items() if why})
        why += evaluation_peak_notes(trial.estimate for trial in trials)
        is_command = self._subject.is_command
        return nothing_fits(self._band, "; ".join(why), needed_device_bytes=needed, is_command=is_command)
