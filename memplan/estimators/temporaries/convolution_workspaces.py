"""The workspaces of convolutions, where cuDNN itself cannot be queried.

PyTorch allocates the workspace of the algorithm that cuDNN's heuristics propose first, runs it, and frees the block
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). The algorithm depends on shapes, dtype, layout, card and version. Where
cuDNN is installed, :mod:`memplan.estimators.cudnn` queries it. In benchmark mode PyTorch times the algorithms instead;
the one that is proposed first is the one that cuDNN itself takes for the fastest.

Elsewhere a table tells of cards from Turing on what cuDNN 9.20 answered about convolutions like the one at hand, and a
rule of older cards, double precision, and single precision that may not be rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolution_choices import chosen_form
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes
from memplan.estimators.temporaries.ruled_forms import ruled_form

if TYPE_CHECKING:
    from memplan.estimators.temporaries.card_generations import Generation
    from memplan.estimators.temporaries.convolutions import Convolution


def workspace_bytes(call: Convolution, generation: Generation) -> int:
    """Return the workspace of a convolution on cuDNN, on a card of a generation."""
    of_depthwise = depthwise_bytes(call, generation)
    if of_depthwise is not None:
        return of_depthwise
    form = chosen_form(call, generation) or ruled_form(call, generation)
    return form.bytes_of(call)
