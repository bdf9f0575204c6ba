"""The code that Inductor writes for a graph, on a machine that need have neither the card nor Triton.

The graph was captured on the CPU. It is described anew as if its tensors lay on the card, and goes through Inductor's
passes, scheduler and code generator as in ``torch/_inductor/compile_fx.py``. No kernel is built: of these the code only
says which buffers they are given. What Inductor would time before it writes code, it is told.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo import device_interface
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx, config, scheduler
from torch._inductor.codecache import CacheBase
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils import _triton
from torch.utils._python_dispatch import _disable_current_modes

from memplan.estimators.absent_card.card_answers import always
from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.device_guards import no_card_made_current

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan.estimators.lowering.inductor_card import InductorCard

_CARD = torch.device("cuda", 0)
# Templates would be timed against calls of libraries, which are presumed to be as fast. Code in C++ could not be run.
_UNTIMED = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_pointwise": False, "cpp_wrapper": False}
_LEAST_RECURSION = 10_000  # calls: graphs of deep models are sorted by functions that call themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class InductorCode:
    """The code of a graph.

    Args:
        source: a module of Python, whose ``call`` runs the graph on a list of inputs, which it empties.
        makers: the nodes of the graph that each of the code's buffers comes from, in order.
        parts: of each part of the code that is recorded as a CUDA graph, which of the graph's inputs it is given, by
            number; None for what the code makes itself. The code's ``recursively_apply_fns`` replaces them.
        changed_inputs: numbers of the inputs that the code writes to.
    """

    source: str
    makers: dict[str, tuple[fx.Node, ...]]
    parts: tuple[tuple[int | None, ...], ...] = ()
    changed_inputs: frozenset[int] = frozenset()


def inductor_code(
    graph: fx.GraphModule,
    examples: Sequence[Any],
    card: InductorCard,
    *,
    is_inference: bool,
    is_backward: bool,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> InductorCode:
    """Return the code of a graph, whose nodes say in ``meta["val"]`` what they return on the CPU.

    Args:
        graph: the graph; it is changed.
        examples: tensors on the CPU that lie as those do that it is given.
        card: the card that the code is for.
        is_inference: whether it is not differentiated.
        is_backward: whether it is a backward pass.
        settings: those of Inductor that the user compiled with.
    """
    fakes = FakeTensorMode()
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())  # noqa: SLF001 - public under no other name
        stack.enter_context(torch.no_grad())
        stack.enter_context(no_card_made_current())
        stack.enter_context(_described(card))
        stack.enter_context(config.patch({**settings, **_UNTIMED}))
        stack.enter_context(tracing(_context_of(fakes)))
        inputs = _on_card(graph, examples, fakes)
        view_to_reshape(graph)  # type: ignore[no-untyped-call]  # untyped in torch
        compile_fx.fake_tensor_prop(graph, inputs)
        compile_fx._recursive_record_original_output_strides(graph)  # noqa: SLF001 - there is no other way
        _keep_strides_of_results(graph, is_inference=is_inference, is_backward=is_backward)
        with V.set_fake_mode(fakes), V.set_debug_handler(DebugContext()):
            compile_fx._recursive_post_grad_passes(graph, is_inference=is_inference)  # noqa: SLF001 - there is no other way
            positions = {node: number for number, node in enumerate(graph.graph.nodes)}
            lowering = GraphLowering(graph, example_inputs=inputs, is_inference=is_inference, is_backward=is_backward)
            with V.set_graph_handler(lowering):
                lowering.run(*inputs)
                _report_strides(lowering)
                written, *_rest = lowering.codegen()
    buffers: dict[str, Any] = dict(lowering.name_to_buffer)
    makers = {
        name: tuple(sorted(buffer.get_origins() & positions.keys(), key=positions.__getitem__))
        for name, buffer in buffers.items()
    }
    return InductorCode(
        source=written.value,
        makers=makers,
        parts=tuple(tuple(each.input_index_mapping) for each in lowering.partition_maps or ()),
        changed_inputs=frozenset(lowering.mutated_input_idxs),
    )


def _context_of(fakes: FakeTensorMode) -> TracingContext:
    """Return what Inductor asks about the function that a graph is of, as AOTAutograd told it, with other tensors."""
    made, outer = TracingContext(fakes), TracingContext.try_get()
    if outer is not None:
        made.fw_metadata, made.output_strides = outer.fw_metadata, outer.output_strides
    return made


def _on_card(graph: fx.GraphModule, examples: Sequence[Any], fakes: FakeTensorMode) -> list[Any]:
    """Describe a graph's tensors as the card's, and return what the graph is given."""

    def described(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with fakes:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CARD)

    def placed(value: Any) -> Any:
        return _CARD if isinstance(value, torch.device) and value.type == "cpu" else value

    for node, example in zip(graph.graph.find_nodes(op="placeholder"), examples, strict=True):
        node.meta["val"] = example
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(described, node.meta["val"])
        node.args = pytree.tree_map(placed, node.args)
        node.kwargs = pytree.tree_map(placed, node.kwargs)
    return [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]


def _keep_strides_of_results(graph: fx.GraphModule, *, is_inference: bool, is_backward: bool) -> None:
    """Let results that the caller gets lie as they were traced; only graphs see others.

    ``compile_fx_forward`` and ``compile_fx_backward`` in ``torch/_inductor/compile_fx.py``.
    """
    (output,) = graph.graph.find_nodes(op="output")
    results: Sequence[Any] = output.args[0]
    told = TracingContext.get().fw_metadata
    start = end = 0
    if is_backward or is_inference:
        end = len(results)
    elif told is not None:
        start = told.num_mutated_inp_runtime_indices
        end = start + told.num_outputs
    output.meta["user_visible_output_idxs"] = [
        number for number in range(start, end) if isinstance(results[number], fx.Node)
    ]


def _report_strides(lowering: GraphLowering) -> None:
    """Tell AOTAutograd in which order results lie, some of which the backward pass is given."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    for each in lowering.graph_outputs:
        is_tensor = isinstance(each, IRNode) and each.has_tensor_output()
        context.output_strides.append(tuple(map(int, each.get_layout().stride)) if is_tensor else None)


@contextmanager
def _described(card: InductorCard) -> Iterator[None]:
    """Let Inductor find the card, and Triton, while the context is open."""
    device, (major, minor) = _properties(card), card.capability
    of_card: dict[str, Any] = {
        "current_device": 0,
        "device_count": 1,
        "get_device_capability": card.capability,
        "get_device_properties": SimpleNamespace(**device._asdict(), minor=minor),
    }
    with ExitStack() as stack:
        for name, answer in of_card.items():
            stack.enter_context(replaced(torch.cuda, name, always(answer)))
        for name, answer in (("current_device", 0), ("get_compute_capability", 10 * major + minor)):
            stack.enter_context(replaced(device_interface.CudaInterface, name, staticmethod(always(answer))))
        stack.enter_context(replaced(DeviceProperties, "create", always(device)))
        stack.enter_context(replaced(CacheBase, "get_system", staticmethod(always({"hash": ""}))))
        stack.enter_context(
            replaced(torch._C, "_conv_determine_backend_memory_format", _format_of_convolution)  # noqa: SLF001 - what FakeTensor asks
        )
        stack.enter_context(replaced(fake_tensor, "init_gpu_context", always(None)))  # makes a tensor there
        stack.enter_context(replaced(scheduler, "has_triton", always(True)))
        stack.enter_context(replaced(_triton, "triton_hash_with_backend", always("")))
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _LEAST_RECURSION))
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


def _format_of_convolution(operand: torch.Tensor, weight: torch.Tensor, _backend: Any) -> torch.memory_format:
    """Return how cuDNN lays out the result of a convolution (``cudnn_conv_suggest_memory_format`` in ATen)."""
    formats = [suggest_memory_format(each) for each in (operand, weight) if each.dtype != torch.float64]
    return next((each for each in formats if each != torch.contiguous_format), torch.contiguous_format)


def _properties(card: InductorCard) -> DeviceProperties:
    major, minor = card.capability
    known: dict[str, Any] = {
        "type": "cuda",
        "index": 0,
        "multi_processor_count": card.sm_count,
        "cc": 10 * major + minor,
        "major": major,
        "regs_per_multiprocessor": 65536,
        "max_threads_per_multi_processor": card.threads_per_sm,
        "max_threads_per_block": 1024,
        "warp_size": 32,
    }
    return DeviceProperties(**{name: value for name, value in known.items() if name in DeviceProperties._fields})
