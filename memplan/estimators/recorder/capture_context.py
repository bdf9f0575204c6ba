"""What user code finds, and what is noted of it, while it is captured as a compiler captures it."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx import traceback
from torch.nn.modules import module as hooks
from torch.utils import checkpoint

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from memplan.estimators.recorder.module_paths import ModulePaths

_MODULE = "nn_module_stack"  # of a node's description; capturing copies it to the nodes that a module's code makes
_CHECKPOINT_GENERATORS = (  # by which ``checkpoint`` runs a function; the first is called from torch 2.14 on
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)
_region_numbers = itertools.count(1)  # of checkpointed regions


@contextmanager
def as_if_compiling(paths: ModulePaths) -> Iterator[None]:
    """Let libraries that ask know that they are compiled, and describe in the graph which code a node comes from.

    Nodes are described by the path of their module, as in ``module_path_of``, and what activation checkpointing
    recomputes is marked for the partitioner.
    """
    with ExitStack() as stack:
        for name in filter(vars(checkpoint).get, _CHECKPOINT_GENERATORS):
            stack.enter_context(replaced(checkpoint, name, _marking_generator))
        stack.enter_context(replaced(checkpoint, "CheckpointFunction", SimpleNamespace(apply=_run_marked)))
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(_naming_modules(paths))
        stack.enter_context(replaced(torch.compiler, "_is_compiling_flag", True))
        stack.enter_context(replaced(torch.compiler, "is_dynamo_compiling", lambda: True))
        yield


def module_path_of(node: fx.Node) -> str:
    """Return the path of the module that a node was captured in, from the module that calls compiled code."""
    described = node.meta.get(_MODULE, {})
    return next((path for path, _type in described.values()), "")


def name_modules(graph: fx.GraphModule, paths: ModulePaths) -> None:
    """Describe the nodes of a graph that Dynamo made, which names modules by their ``id``, by their modules' paths."""
    for each in graph.modules():
        for node in each.graph.nodes if isinstance(each, fx.GraphModule) else ():
            described = node.meta.get(_MODULE)
            if described:
                *_outer, (key, (_name, kind)) = described.items()
                part = _part(paths.path_of(int(key.partition("@")[0])), paths.current)
                node.meta[_MODULE] = {part: (part, kind)}


def forget_modules(graph: fx.GraphModule) -> None:
    """Let nodes belong to no module, as code of a backward pass does."""
    for node in graph.graph.nodes:
        node.meta.pop(_MODULE, None)


@contextmanager
def _naming_modules(paths: ModulePaths) -> Iterator[None]:
    caller = paths.current

    def name(module: nn.Module, *_: Any) -> None:
        part = _part(paths.current, caller)
        traceback.get_current_meta()[_MODULE] = {part: (part, type(module))}

    entering = hooks.register_module_forward_pre_hook(name)
    leaving = hooks.register_module_forward_hook(name, always_call=True)
    try:
        yield
    finally:
        entering.remove()
        leaving.remove()


def _part(path: str, caller: str) -> str:
    """Return the path of a module from one around it."""
    return path.removeprefix(caller).removeprefix(".")


def _marking_generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    """Mark what is made between its two steps, in the place of PyTorch's generator, as checkpointed."""
    with _marked():
        yield


def _run_marked(function: Callable[..., Any], _preserves_rng_state: bool, *args: Any) -> Any:
    with _marked():
        return function(*args)


@contextmanager
def _marked() -> Iterator[None]:
    """Let the partitioner recompute what is made while the context is open.

    As ``TagActivationCheckpoint`` in ``torch/_higher_order_ops/wrap.py``, by which Dynamo captures checkpointing.
    """
    marks = {"recompute": checkpoint.CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": next(_region_numbers)}
    described = traceback.get_current_meta()
    before = {name: described[name] for name in marks if name in described}
    described.update(marks)
    try:
        yield
    finally:
        for name in marks:
            del described[name]
        described.update(before)
