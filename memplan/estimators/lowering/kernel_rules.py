"""The rules for temporaries of the target device's kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.attention_temporaries import attention_rules
from memplan.estimators.lowering.batch_norm_temporaries import batch_norm_rules
from memplan.estimators.lowering.cuda_reductions import SUMS_FOR_BIAS, cuda_reduction
from memplan.estimators.lowering.cuda_temporaries import CUDA_RULES
from memplan.estimators.lowering.cudnn_convolution import convolution_rules
from memplan.estimators.lowering.embedding_temporaries import embedding_rules
from memplan.estimators.lowering.grouped_products import grouped_product_rules
from memplan.estimators.lowering.host_temporaries import HOST_RULES
from memplan.estimators.lowering.layer_norm_temporaries import layer_norm_rules
from memplan.estimators.lowering.library_workspaces import ProductWorkspace, product_workspaces
from memplan.estimators.lowering.operator_rules import is_chosen_on_card, is_of_known_library, is_plain
from memplan.estimators.lowering.sort_temporaries import sort_rules
from memplan.estimators.lowering.temporary_bytes import temporaries_by
from memplan.estimators.temporaries.card_generations import Generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

KEYWORDS_READ = {
    "aten.sort": ("stable", "dim"),
    "aten.addmm": ("beta",),
}  # keyword arguments that rules read after the others, in this order


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRules:
    """The rules of one device.

    Args:
        temporary_bytes: returns a kernel's temporaries, given the operator without overload, its arguments and results.
        are_known: whether a rule counts the operator's kernel or it needs none, given its name with and without
            overload.
        product_workspaces: returns what a matrix product takes for libraries, given the same without results.
    """

    temporary_bytes: Callable[[str, tuple[Any, ...], Any], TemporaryBytes]
    are_known: Callable[[OpOverload, str], bool]
    product_workspaces: Callable[[str, tuple[Any, ...]], tuple[ProductWorkspace, ...]]


def host_kernels() -> KernelRules:
    """Return the rules of the CPU."""
    return KernelRules(
        temporary_bytes=functools.partial(temporaries_by, HOST_RULES),
        are_known=lambda operator, _name: is_of_known_library(operator),
        product_workspaces=lambda _operator, _args: (),
    )


def cuda_kernels(capability: tuple[int, int], multiprocessors: int | None) -> KernelRules:
    """Return the rules of a card of a compute capability.

    Args:
        capability: compute capability.
        multiprocessors: of the card; None where only its memory is known, and its reductions are not counted.
    """
    of_card = {
        **convolution_rules(Generation.of(capability, multiprocessors)),
        **attention_rules(capability, multiprocessors),
        **sort_rules(capability),
        **embedding_rules(capability, multiprocessors),
        **batch_norm_rules(capability, multiprocessors),
        **layer_norm_rules(capability, multiprocessors),
        **grouped_product_rules(capability, multiprocessors),
    }
    tables = (*CUDA_RULES, of_card)

    def temporary_bytes(operator: str, args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        temporaries = temporaries_by(tables, operator, args, result)
        reduction = cuda_reduction(operator, args, result, capability, multiprocessors) if multiprocessors else None
        if reduction is None:
            return temporaries
        if operator == SUMS_FOR_BIAS:  # once its workspaces are freed
            return replace(temporaries, before_return=(reduction,))
        return replace(temporaries, after_results=(*temporaries.after_results, reduction))  # beside a converted input

    def are_known(operator: OpOverload, name: str) -> bool:
        return not is_chosen_on_card(name) and (any(name in rules for rules in tables) or is_plain(operator))

    return KernelRules(
        temporary_bytes=temporary_bytes,
        are_known=are_known,
        product_workspaces=functools.partial(product_workspaces, capability),
    )
