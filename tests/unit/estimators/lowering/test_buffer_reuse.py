"""When a buffer waits for the next one of its size, and when it is freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from memplan.estimators.lowering.launches import Launch

if TYPE_CHECKING:
    from torch import fx

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports

SIZE_BYTES = 64  # of four times four numbers


@pytest.mark.parametrize(
    ("most_bytes", "is_kept"),
    [
        pytest.param(3 * SIZE_BYTES, True, id="there is room for it"),
        pytest.param(3 * SIZE_BYTES - 1, False, id="the peak would rise"),
    ],
)
def test_a_buffer_is_kept_for_a_later_one_where_the_peak_does_not_rise(most_bytes: int, is_kept: bool) -> None:
    first, other, last = _products()
    launches = [_launch(first, releases=(first,)), _launch(other), _launch(last)]
    planned = _reusing_buffers(launches, [most_bytes, 2 * SIZE_BYTES, SIZE_BYTES])
    assert [each.takes_over for each in planned] == [{}, {}, {last: first} if is_kept else {}]
    assert [each.releases for each in planned] == ([(), (), (first,)] if is_kept else [(first,), (), ()])


def test_the_next_launch_takes_over_what_was_just_freed_even_at_the_peak() -> None:
    first, _, last = _products()
    planned = _reusing_buffers([_launch(first, releases=(first,)), _launch(last)], [SIZE_BYTES, SIZE_BYTES])
    assert planned[1].takes_over == {last: first}


def _reusing_buffers(launches: list[Launch], live_bytes: list[int]) -> tuple[Launch, ...]:
    from memplan.estimators.lowering.buffer_reuse import reusing_buffers  # noqa: PLC0415 - imports Inductor

    return reusing_buffers(launches, live_bytes)


def _products() -> tuple[fx.Node, ...]:
    """Return two products of the same size, and between them one of another."""
    graph = make_fx(lambda x, y: (x @ x, y @ y, x @ x), tracing_mode="fake")(torch.ones(4, 4), torch.ones(5, 5)).graph
    return tuple(each for each in graph.nodes if each.op == "call_function")


def _launch(node: fx.Node, *, releases: tuple[fx.Node, ...] = ()) -> Launch:
    return Launch(computes=(node,), is_joined=False, writes=(), places={}, mutates=(), takes_over={}, releases=releases)
