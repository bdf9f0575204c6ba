"""The rounds of loops over samples by which a run of a step may differ from one of one sample fewer.

A run of one sample more has the same events and, in some places, those of one more round. Which round that is, and of
which sample, is not said by what its operators are; it is the one that frees what the same sample's other rounds made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.sample_loops import SampleLoops

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan.estimators.recorder.recording import Recording

_Kind = tuple[object, ...]  # of an event: what makes and frees the same is of one kind
_Span = tuple[int, int]


def loops_between(small: Recording, large: Recording) -> Iterator[Iterator[tuple[SampleLoops, Recording]]]:
    """Yield the loops by which a run of one sample more may differ, each with one of its samples' rounds as repeated.

    The run comes with them, in which consecutive frees may come in another order. The first or the last round of a loop
    may be unlike the others, as where gradients begin to be summed.
    """
    frees, kinds = list(consecutive_frees(large)), _kinds(large)
    for ours, theirs in _numbered_kinds(small, large, _kinds(small), kinds):
        late, early = _insertions(ours, theirs), _insertions(ours[::-1], theirs[::-1])
        if late is None or early is None or len(late) != len(early):
            continue
        spans = [(len(theirs) - stop, *span) for (_, stop), span in zip(reversed(early), late, strict=True)]
        reaches = [
            _Reach(
                first=first,
                last=last,
                length=end - last,
                is_of_frees=any(begin <= first and end <= stop for begin, stop in frees),
            )
            for first, last, end in spans
        ]
        yield _loops_at(large, kinds, reaches, least_samples=small.micro_batch_size)


def with_like_frees_together(recording: Recording) -> Recording:
    """Sort consecutive frees by what made the blocks: their order makes no difference to an allocator."""
    kinds, blocks = _kinds(recording), recording.event_blocks
    events = list(range(len(blocks)))
    for start, stop in consecutive_frees(recording):
        events[start:stop] = sorted(events[start:stop], key=lambda event: (kinds[event], blocks[event]))
    return replace(recording, event_blocks=[blocks[event] for event in events])


def consecutive_frees(recording: Recording) -> Iterator[_Span]:
    """Yield the events from one to another that are frees, in one phase of a step, with nothing in between."""
    cuts = {*recording.step_starts, *recording.all_returns}
    begin = 0
    kinds = list(zip(recording.event_allocates, recording.event_phases, strict=True))
    for event in range(1, len(kinds) + 1):
        if event == len(kinds) or event in cuts or kinds[event] != kinds[begin]:
            if not kinds[begin][0]:
                yield begin, event
            begin = event


def _kinds(recording: Recording) -> list[_Kind]:
    """Return what each event does: in which step and phase, and which operator of which module made the block."""
    operators, modules = list(recording.operator_names), list(recording.module_names)
    steps = np.searchsorted(recording.step_starts, np.arange(len(recording.event_blocks)), side="right").tolist()
    return [
        (
            step,
            phase,
            allocates,
            operators[recording.operators[block]],
            modules[recording.modules[block]],
            recording.components[block],
            recording.streams[block],
        )
        for step, phase, allocates, block in zip(
            steps, recording.event_phases, recording.event_allocates, recording.event_blocks, strict=True
        )
    ]


def _numbered_kinds(
    small: Recording, large: Recording, kinds_of_small: Sequence[_Kind], kinds_of_large: Sequence[_Kind]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the kind of each event of both runs as a number, first with the sizes of what there is for each sample.

    Loops that follow one another may differ by the size of what they make alone. But a block for all samples of one run
    may be as large as one for a sample of the other.
    """
    runs = [
        [(kind, run.block_bytes[block]) for kind, block in zip(kinds, run.event_blocks, strict=True)]
        for run, kinds in ((small, kinds_of_small), (large, kinds_of_large))
    ]
    fewer, more = map(Counter, runs)
    of_each_sample = {
        each for each in more if more[each] * small.micro_batch_size == fewer[each] * large.micro_batch_size
    }
    for sized in (of_each_sample, set[tuple[_Kind, int]]()):
        numbers: dict[object, int] = {}
        of_small, of_large = (
            [numbers.setdefault(each if each in sized else each[0], len(numbers)) for each in run] for run in runs
        )
        yield of_small, of_large


def _loops_at(
    large: Recording, kinds: Sequence[_Kind], reaches: Sequence[_Reach], *, least_samples: int
) -> Iterator[tuple[SampleLoops, Recording]]:
    for sample in reversed(range(large.micro_batch_size)):
        of_sample = _RoundsOfSample(large, kinds, reaches, sample)
        rounds = of_sample.rounds()
        if rounds is not None:
            event_loops = np.zeros(len(large.event_blocks), dtype=np.int32)
            for number, (start, stop) in enumerate((span for span, _ in rounds), start=1):
                event_loops[start:stop] = number
            loops = SampleLoops(
                least_samples=least_samples,
                event_loops=event_loops,
                runs_backward=tuple(is_backward for _, is_backward in rounds),
                carried=tuple(of_sample.carried.items()),
            )
            yield loops, replace(large, event_blocks=of_sample.event_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """Where one round of a loop can be left out, to the same effect: the events from ``first`` or ``last`` on.

    Args:
        first: event.
        last: event.
        length: how many events a round has.
        is_of_frees: whether the events are all consecutive frees.
    """

    first: int
    last: int
    length: int
    is_of_frees: bool


class _RoundsOfSample:
    """Finds the rounds of one sample, in which all that its rounds make is freed, but for what a round hands on.

    Args:
        recording: the run.
        kinds: what each of its events does.
        reaches: the loops.
        sample: number of the sample, from 0.
    """

    def __init__(self, recording: Recording, kinds: Sequence[_Kind], reaches: Sequence[_Reach], sample: int) -> None:
        self.event_blocks, self._allocates = list(recording.event_blocks), recording.event_allocates
        self._rounds_after = recording.micro_batch_size - 1 - sample
        self._reaches = reaches
        self._kinds = kinds
        self._made_at = {block: event for event, block in enumerate(self.event_blocks) if self._allocates[event]}
        within = {event for each in reaches for event in range(each.first, each.last + each.length)}
        self._others = {block for event, block in enumerate(self.event_blocks) if event not in within}
        self._repeated: set[int] = set()
        self.carried: dict[int, int] = {}  # the block that a round frees -> the one that it makes in its place

    def rounds(self) -> list[tuple[_Span, bool]] | None:
        """Return the sample's round of each loop, and whether the loop runs backward; None if there are none."""
        found = []
        for reach in self._reaches:
            if reach.is_of_frees:
                self._put_last(reach)
            spans = [(start, start + reach.length) for start in self._starts(reach)]
            taken = next((each for hands_on in (False, True) for each in spans if self._takes(each, hands_on)), None)
            if taken is None:
                return None
            found.append((taken, self._runs_backward(taken, reach)))
            self.carried |= self._carried(taken)
            self._repeated |= self._made(taken)
        inside = {event for (start, stop), _ in found for event in range(start, stop)}
        in_rounds, outside = self._repeated | self.carried.keys(), self._repeated - set(self.carried.values())
        blocks = enumerate(self.event_blocks)
        is_closed = all(block in in_rounds if event in inside else block not in outside for event, block in blocks)
        return found if is_closed else None

    def _put_last(self, reach: _Reach) -> None:
        """Let frees of the sample's blocks come after others of their kind that they are among, in whatever order."""
        span = slice(reach.first, reach.last + reach.length)
        self.event_blocks[span] = sorted(self.event_blocks[span], key=lambda block: block in self._repeated)

    def _starts(self, reach: _Reach) -> Iterator[int]:
        """Yield where the round may begin: where it does if the loop runs forward, and then anywhere."""
        anywhere = range(reach.last, reach.first - 1, -1)
        forward = reach.last - self._rounds_after * reach.length
        yield from (start for start in range(forward, forward - reach.length, -1) if start in anywhere)
        yield from anywhere

    def _takes(self, span: _Span, hands_on: bool) -> bool:
        """Whether events are a round: what they free is the sample's or handed on, and what they make is freed here."""
        made, carried = self._made(span), self._carried(span) if hands_on else {}
        is_freed_here = not (made - set(carried.values())) & self._others
        return is_freed_here and self._freed(span) <= made | self._repeated | carried.keys()

    def _carried(self, span: _Span) -> dict[int, int]:
        """Return what a round frees that it did not make, with what it makes and leaves in its place.

        That is what stands where the round before made the other or, where that was not made in a round, what is of the
        same kind, if there are as many.
        """
        made, freed = self._made(span), self._freed(span)
        left, handed_on = made - freed, freed - made - self._repeated
        length = span[1] - span[0]
        following = {block: self._made_at[block] + length for block in handed_on}
        carried = {
            block: self.event_blocks[event]
            for block, event in following.items()
            if span[0] <= event < span[1] and self.event_blocks[event] in left and self._allocates[event]
        }
        ours, theirs = self._by_kind(handed_on - carried.keys()), self._by_kind(left - set(carried.values()))
        alike = ((ours[kind], theirs[kind]) for kind in ours.keys() & theirs.keys())
        return carried | {
            each: next_
            for found, made_anew in alike
            if len(found) == len(made_anew)
            for each, next_ in zip(found, made_anew, strict=True)
        }

    def _by_kind(self, blocks: Iterable[int]) -> dict[_Kind, list[int]]:
        found: dict[_Kind, list[int]] = {}
        for block in sorted(blocks, key=self._made_at.__getitem__):
            found.setdefault(self._kinds[self._made_at[block]], []).append(block)
        return found

    def _runs_backward(self, span: _Span, reach: _Reach) -> bool:
        """Whether what the round before frees was made later; where there is none, what the one after frees earlier."""
        is_after = span[0] - reach.length < reach.first
        distance = reach.length if is_after else -reach.length
        for event in range(*span):
            block = self.event_blocks[event]
            if not self._allocates[event] and block in self._repeated and event + distance < len(self.event_blocks):
                neighbour = self.event_blocks[event + distance]
                return (self._made_at[neighbour] > self._made_at[block]) is not is_after
        return False

    def _made(self, span: _Span) -> set[int]:
        return {self.event_blocks[event] for event in range(*span) if self._allocates[event]}

    def _freed(self, span: _Span) -> set[int]:
        return {self.event_blocks[event] for event in range(*span) if not self._allocates[event]}


def _insertions(small: Sequence[int], large: Sequence[int]) -> list[_Span] | None:
    """Return which rounds are left out of the larger sequence to get the smaller one, each as late as it can be.

    None where what is left out does not repeat what is just before it.
    """
    spare, at, begin = len(large) - len(small), 0, 0
    found: list[_Span] = []
    while begin < len(large):
        if at < len(small) and small[at] == large[begin]:
            at, begin = at + 1, begin + 1
            continue
        ends = (
            begin + length
            for length in range(1, min(spare, begin) + 1)
            if large[begin : begin + length] == large[begin - length : begin]
            and small[at : at + 1] == large[begin + length : begin + length + 1]
        )
        end = next(ends, None)
        if end is None:
            return None
        found.append((begin, end))
        spare, begin = spare - (end - begin), end
    return found if at == len(small) and not spare else None
