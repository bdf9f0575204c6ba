"""The fast allocator against a naive one, written from the rules with linked blocks and plain lists, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.estimators.allocators.allocator_config import AllocatorConfig, SegmentOrder
from memplan.estimators.allocators.caching_allocator import AllocatorPeaks, replay
from memplan.units import KIB, MIB
from tests.allocation_events import Events, event_sequences

INFINITE = 1 << 50
LARGE_BASE = 120 * MIB << 20  # a multiple of every page used here


@dataclass(eq=False)
class Block:
    address: int
    size: int
    allocated: bool = False
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None
    freed_at: int = 0


@dataclass
class NaivePool:
    small: bool
    free: list[Block] = field(default_factory=list)
    unmapped: list[Block] = field(default_factory=list)

    def ordered(self) -> list[Block]:
        return sorted(self.free, key=lambda block: (block.size, block.address))


class OutOfLimitError(Exception):
    pass


class NaiveAllocator:
    def __init__(self, config: AllocatorConfig, limit: int | None) -> None:
        self.config, self.limit = config, limit
        self.max_split = config.max_split_size_bytes or INFINITE
        self.pools = {True: NaivePool(small=True), False: NaivePool(small=False)}
        self.total = self.peak = self.retries = self.calls = 0
        self.spare_addresses: list[range] = []  # in the order in which they were left over
        self.lowest_address, self.highest_address = LARGE_BASE, 0

    def malloc(self, requested: int) -> Block:
        size = self.config.rounded_bytes(requested)
        pool = self.pools[size <= MIB]
        segment = 2 * MIB if pool.small else self.large_segment(size)
        block = self.find(pool, size)
        if block is None:
            self.collect_garbage()
            block = self.new(pool, size, segment)
        if block is None and self.release_oversize(pool, size):
            block = self.new(pool, size, segment)
        if block is None:
            self.release_all()
            self.retries += 1
            block = self.new(pool, size, segment)
        if block is None:
            raise OutOfLimitError
        rest = block.size - size
        is_fine_grained = pool.small or self.config.expandable_segments
        if rest >= 512 if is_fine_grained else size < self.max_split and rest > MIB:
            tail = Block(block.address + size, rest, before=block, after=block.after, freed_at=self.calls)
            if block.after:
                block.after.before = tail
            block.size, block.after = size, tail
            pool.free.append(tail)
        block.allocated = True
        return block

    def large_segment(self, size: int) -> int:
        return self.config.large_segment_size_bytes if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB

    def find(self, pool: NaivePool, size: int) -> Block | None:
        if not pool.small:
            self.calls += 1
        fitting = [block for block in pool.ordered() if block.size >= size]
        if not fitting:
            return None
        choice = 0
        if self.config.expandable_segments:
            while choice + 1 < len(fitting) and self.reach(fitting[choice + 1]) < self.reach(fitting[choice]):
                choice += 1
        block = fitting[choice]
        if size < self.max_split <= block.size:
            return None
        if size >= self.max_split and block.size >= size + self.config.max_non_split_rounding_bytes:
            return None
        pool.free.remove(block)
        return block

    def reach(self, block: Block) -> int:
        return block.size + (block.after.size if block.after and not block.after.mapped else 0)

    def new(self, pool: NaivePool, size: int, segment: int) -> Block | None:
        if self.limit is not None and self.total + segment > self.limit:
            return None
        if self.config.expandable_segments:
            return self.grow(pool, size)
        block = Block(self.place(segment), segment)
        self.account(segment)
        return block

    def place(self, segment: int) -> int:
        if self.config.segment_order is SegmentOrder.AGE:
            self.highest_address += segment
            return self.highest_address - segment
        room = -(-segment // (2 * MIB)) * 2 * MIB
        for place in reversed(range(len(self.spare_addresses))):
            spare = self.spare_addresses[place]
            if len(spare) >= room:
                self.spare_addresses[place] = spare[room:]
                return spare.start
        end = self.lowest_address
        self.lowest_address -= -(-room // (32 * MIB)) * 32 * MIB
        self.spare_addresses.append(range(self.lowest_address + room, end))
        return self.lowest_address

    def account(self, size: int) -> None:
        self.total += size
        self.peak = max(self.peak, self.total)

    def grow(self, pool: NaivePool, size: int) -> Block:
        if not pool.unmapped:
            pool.unmapped.append(Block(0 if pool.small else LARGE_BASE, INFINITE, mapped=False))
        block = next(
            start
            for hole in sorted(pool.unmapped, key=lambda each: each.address)
            if self.run_length(start := hole.before if hole.before and not hole.before.allocated else hole) >= size
        )
        if not block.mapped:
            self.map(pool, block, min(block.size, size))
        while block.size < size:
            assert block.after
            block = self.map(pool, block.after, min(size - block.size, block.after.size))
        pool.free.remove(block)
        return block

    def run_length(self, block: Block | None) -> int:
        length = 0
        while block and not block.allocated:
            length += block.size
            block = block.after
        return length

    def page(self, pool: NaivePool) -> int:
        return 2 * MIB if pool.small else self.config.large_segment_size_bytes

    def map(self, pool: NaivePool, hole: Block, wanted: int) -> Block:
        page = self.page(pool)
        mapped = (wanted + page - 1) // page * page
        pool.unmapped.remove(hole)
        if mapped < hole.size:
            rest = Block(hole.address + mapped, hole.size - mapped, mapped=False, before=hole, after=hole.after)
            if hole.after:
                hole.after.before = rest
            hole.size, hole.after = mapped, rest
            pool.unmapped.append(rest)
        hole.mapped = True
        self.account(mapped)
        self.merge(pool, hole)
        pool.free.append(hole)
        return hole

    def merge(self, pool: NaivePool, block: Block) -> None:
        store = pool.free if block.mapped else pool.unmapped
        before, after = block.before, block.after
        if before and not before.allocated and before.mapped == block.mapped:
            store.remove(before)
            block.address, block.size, block.before = before.address, block.size + before.size, before.before
            if block.before:
                block.before.after = block
        if after and not after.allocated and after.mapped == block.mapped:
            store.remove(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after:
                block.after.before = block

    def free(self, block: Block) -> None:
        pool = self.pools[block.size <= MIB]
        block.allocated = False
        self.merge(pool, block)
        block.freed_at = self.calls
        pool.free.append(block)

    def release(self, pool: NaivePool, block: Block) -> None:
        pool.free.remove(block)
        self.total -= block.size

    def whole(self, pool: NaivePool) -> list[Block]:
        return [block for block in pool.ordered() if block.before is None and block.after is None]

    def release_all(self) -> None:
        for pool in self.pools.values():
            if self.config.expandable_segments:
                for block in pool.ordered():
                    self.unmap(pool, block)
            else:
                for block in self.whole(pool):
                    self.release(pool, block)

    def unmap(self, pool: NaivePool, block: Block) -> None:
        page = self.page(pool)
        begin = (block.address + page - 1) // page * page
        end = (block.address + block.size) // page * page
        if end <= begin:
            return
        if block.address < begin:
            front = Block(block.address, begin - block.address, before=block.before, after=block)
            if block.before:
                block.before.after = front
            block.before = front
            pool.free.append(front)
        if end < block.address + block.size:
            back = Block(end, block.address + block.size - end, before=block, after=block.after)
            if block.after:
                block.after.before = back
            block.after = back
            pool.free.append(back)
        pool.free.remove(block)
        block.address, block.size, block.mapped = begin, end - begin, False
        self.merge(pool, block)
        pool.unmapped.append(block)
        self.total -= end - begin

    def release_oversize(self, pool: NaivePool, size: int) -> bool:
        if self.config.max_split_size_bytes is None or self.config.expandable_segments:
            return False
        wanted = max(size, self.max_split)
        for block in pool.ordered():
            if block.size >= wanted:
                self.release(pool, block)
                return True
        released = 0
        for block in reversed(pool.ordered()):
            if released < wanted and block.size >= self.max_split:
                self.release(pool, block)
                released += block.size
        return released >= wanted

    def collect_garbage(self) -> None:
        if self.limit is None or not self.config.garbage_collection_threshold or self.config.expandable_segments:
            return
        pool = self.pools[False]
        target = self.total - int(self.config.garbage_collection_threshold * self.limit)
        reclaimed, freed_any = 0, True
        while reclaimed < target and freed_any and self.whole(pool):
            whole = self.whole(pool)
            mean = sum(self.calls - block.freed_at for block in whole) / len(whole)
            old = [block for block in whole if self.calls - block.freed_at >= mean]
            for block in old:
                self.release(pool, block)
                reclaimed += block.size
            freed_any = bool(old)


def replay_naively(events: Events, config: AllocatorConfig, limit_bytes: int | None) -> AllocatorPeaks:
    allocator = NaiveAllocator(config, limit_bytes)
    live: dict[int, tuple[Block, int]] = {}
    history, ran_out_at = [(0, 0, 0)], None  # allocated, event, requested
    for index, (name, size) in enumerate(events):
        if size == 0:
            allocator.free(live.pop(name)[0])
            continue
        try:
            live[name] = (allocator.malloc(size), size)
        except OutOfLimitError:
            ran_out_at = index
            break
        allocated = sum(block.size for block, _ in live.values())
        history.append((allocated, index, sum(each for _, each in live.values())))
    peak_allocated, peak_index, _ = max(history, key=lambda entry: (entry[0], -entry[1]))
    return AllocatorPeaks(
        peak_requested_bytes=max(entry[2] for entry in history),
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=allocator.peak,
        peak_event_index=peak_index,
        alloc_retries=allocator.retries,
        ran_out_at=ran_out_at,
    )


request_bytes = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 25 * MIB),
    st.integers(1, 60).map(lambda count: count * 2 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 15 * MIB, 20 * MIB, 64 * MIB]),
)
configs = st.builds(
    AllocatorConfig,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, None, 32 * MIB, 64 * MIB]),
    max_non_split_rounding_bytes=st.sampled_from([20 * MIB, 40 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16, (0, 0, 2, 8) * 4]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.3, 0.8]),
    large_segment_size_bytes=st.sampled_from([20 * MIB, 20 * MIB, 24 * MIB]),
    segment_order=st.sampled_from(SegmentOrder),
)
limits = st.one_of(st.none(), st.integers(40 * MIB, 400 * MIB))


@settings(max_examples=200, deadline=None)
@given(event_sequences(request_bytes), configs, limits)
def test_the_fast_allocator_agrees_with_the_naive_one(
    events: Events, config: AllocatorConfig, limit_bytes: int | None
) -> None:
    names, sizes = zip(*events, strict=True)
    fast = replay(names, sizes, config=config, limit_bytes=limit_bytes)
    assert fast == replay_naively(events, config, limit_bytes)


@settings(max_examples=100, deadline=None)
@given(event_sequences(request_bytes), configs, limits)
def test_requested_is_at_most_allocated_and_allocated_at_most_reserved(
    events: Events, config: AllocatorConfig, limit_bytes: int | None
) -> None:
    names, sizes = zip(*events, strict=True)
    peaks = replay(names, sizes, config=config, limit_bytes=limit_bytes)
    assert peaks.peak_requested_bytes <= peaks.peak_allocated_bytes <= peaks.peak_reserved_bytes


@settings(max_examples=100, deadline=None)
@given(event_sequences(request_bytes), configs, st.integers(1, 3))
def test_streams_know_nothing_of_each_other(events: Events, config: AllocatorConfig, streams: int) -> None:
    names, sizes = zip(*events, strict=True)
    side_streams = {name: name % (streams + 1) for name in names if name % (streams + 1)}
    together = replay(names, sizes, config=config, side_streams=side_streams).peak_reserved_bytes
    apart = 0
    for stream in range(streams + 1):
        own = [(name, size) for name, size in events if side_streams.get(name, 0) == stream]
        apart += replay(*zip(*own, strict=True), config=config).peak_reserved_bytes if own else 0
    assert together == apart  # nothing is returned to the driver without a limit


@settings(max_examples=100, deadline=None)
@given(event_sequences(request_bytes), configs)
def test_a_limit_that_is_never_reached_changes_nothing(events: Events, config: AllocatorConfig) -> None:
    names, sizes = zip(*events, strict=True)
    without_collection = AllocatorConfig(
        expandable_segments=config.expandable_segments, max_split_size_bytes=config.max_split_size_bytes
    )
    free_run = replay(names, sizes, config=without_collection)
    limit_bytes = 2 * free_run.peak_reserved_bytes + 128 * MIB
    assert replay(names, sizes, config=without_collection, limit_bytes=limit_bytes) == free_run
