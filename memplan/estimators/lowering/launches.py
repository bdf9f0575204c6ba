"""What runs of a graph that Inductor made kernels of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from memplan.estimators.lowering.inductor_concatenation import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel, or a call of a library, when it runs.

    Args:
        computes: nodes whose values are needed and were not before, in order.
        is_joined: whether it is a kernel of joined operators, which allocates no more than what it writes.
        writes: nodes whose values get a buffer; of a library's call, those are its own matter.
        places: where values lie that are written into the buffer of a concatenation, by node; it is there from the
            first of them on.
        mutates: nodes whose buffer the kernel changes, rather than just writes.
        takes_over: the buffers that some of what it allocates takes the place of, by node.
        releases: nodes whose values no later launch needs, or that are kept for no other reason than to be taken over.
    """

    computes: tuple[fx.Node, ...]
    is_joined: bool
    writes: tuple[fx.Node, ...]
    places: dict[fx.Node, Place]
    mutates: tuple[fx.Node, ...]
    takes_over: dict[fx.Node, fx.Node]
    releases: tuple[fx.Node, ...]
