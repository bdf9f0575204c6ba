"""The code that Inductor writes for functions small enough to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx.experimental.proxy_tensor import make_fx

from memplan.estimators.lowering.inductor_card import inductor_card

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from memplan.estimators.lowering.inductor_code import InductorCode


def code_of(
    function: Callable[..., object], *inputs: torch.Tensor, sm_count: int = 108, is_backward: bool = False
) -> InductorCode:
    """Return the code of a function for a card with an A100's compute capability."""
    from memplan.estimators.lowering.inductor_code import inductor_code  # noqa: PLC0415 - imports Inductor

    graph = make_fx(function, tracing_mode="fake")(*inputs)
    examples = [each.meta["val"] for each in graph.graph.find_nodes(op="placeholder")]
    card = inductor_card((8, 0), sm_count)
    return inductor_code(graph, examples, card, is_inference=False, is_backward=is_backward)
