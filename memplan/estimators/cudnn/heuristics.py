"""Which workspace cuDNN's first choice for a convolution takes on a card of a compute capability.

PyTorch runs the first engine that cuDNN's instant heuristics propose and that can be built, or of the list of fallbacks
where they propose none, and takes its workspace from the caching allocator (``run_single_conv`` in
``aten/src/ATen/native/cudnn/Conv_v8.cpp``). In benchmark mode it first times all that both propose, in one workspace as
large as the largest of them (``get_plans_from_find``).

Where there is no card, cuDNN leaves engines out: those of cuBLASLt unless it meets a stand-in
(:mod:`memplan.estimators.cudnn.product_library`), and one that
:mod:`memplan.estimators.temporaries.engines_for_cards` works out. On Hopper it tells of other parts of tiles than run
on the card; :mod:`memplan.estimators.temporaries.divided_tiles` works these out.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from memplan.estimators.cudnn.library import Attribute, CudnnError, Descriptor, Kind, Library, Type
from memplan.estimators.cudnn.product_library import find_every_product
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.divided_tiles import ClusterKernel, workspace_on_card
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan.estimators.temporaries.convolutions import Convolution

_INSTANT, _FALLBACK = 0, 2  # CUDNN_HEUR_MODE_INSTANT and CUDNN_HEUR_MODE_FALLBACK
_CROSS_CORRELATION = 1
_ALIGNMENT_BYTES = 32  # the most that PyTorch says of an address (``getAlignment``); blocks begin at multiples of 512
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_OPERATIONS = {
    Pass.FORWARD: (Kind.OPERATION_FORWARD, Attribute.OPERATION_FORWARD),
    Pass.INPUT_GRADIENT: (Kind.OPERATION_INPUT_GRADIENT, Attribute.OPERATION_INPUT_GRADIENT),
    Pass.WEIGHT_GRADIENT: (Kind.OPERATION_WEIGHT_GRADIENT, Attribute.OPERATION_WEIGHT_GRADIENT),
}
# Behind the first of each operation's attributes, in the order of the header.
_ALPHA, _BETA, _CONVOLUTION, _WEIGHT, _INPUT, _OUTPUT = range(6)

_TURING, _FIRST_FROM_TURING_ON = (7, 5), (9, 11)
_TENSOR_CORE, _ROUNDS_INPUTS, _NONDETERMINISTIC = 0, 1, 4  # cudnnBackendNumericalNote_t
_MOST_NOTES, _MOST_PROPOSALS = 32, 64

_LARGE_HOPPER_SM_COUNT = 132
_TILE, _WORKSPACE = "CUDNN_KNOB_TYPE_TILE_SIZE", "CUDNN_KNOB_TYPE_WORKSPACE"
_ROWS_OF_CLUSTER, _COLUMNS_OF_CLUSTER = "CUDNN_KNOB_TYPE_TILE_CGA_M", "CUDNN_KNOB_TYPE_TILE_CGA_N"
# Rows and columns, by the workspaces of an H100 and of 448 answers; what other numbers stand for is not known.
_TILES = {0: (128, 128), 1: (128, 64), 3: (256, 128), 4: (256, 64), 5: (64, 64), 7: (64, 128), 9: (64, 256)}

# What cuDNN wants to know of a device. Of these the answers for 1,674 convolutions in single precision on Ampere depend
# on the compute capability alone (9.19: every other figure here was changed, one at a time), and on Turing on the
# multiprocessors, too (9.20 and 9.24); the rest is an A100's.
_DEVICE = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 108,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 166912,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 42505273344,
    "smClockRateKHz": 1410000,
    "memClockRateKHz": 1215000,
    "l2CacheSize": 41943040,
    "cudaDeviceId": 0,
    "driverVer": 13000,
    "deviceName": "described",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One of cuDNN's engines with its knobs, as the JSON of a plan names them."""

    number: int
    knobs: Mapping[str, int]

    @property
    def cluster_kernel(self) -> ClusterKernel | None:
        """The kernel that it runs in clusters; None where it runs none, or its tile is not known."""
        tile = _TILES.get(self.knobs.get(_TILE, -1))
        if tile is None or not {_WORKSPACE, _ROWS_OF_CLUSTER}.issubset(self.knobs):
            return None
        cluster = self.knobs[_ROWS_OF_CLUSTER], self.knobs[_COLUMNS_OF_CLUSTER]
        return ClusterKernel(tile=tile, cluster=cluster, may_divide=self.knobs[_WORKSPACE] == 0)


def check_known(capability: tuple[int, int], version: str) -> None:
    """Raise where this version of cuDNN would answer for a card that it does not run on.

    Raises:
        CudnnError: 9.11 and later run on Turing and newer cards, as their support matrix says; to all others they
            give one answer.
    """
    if capability < _TURING and tuple(map(int, version.split("."))) >= _FIRST_FROM_TURING_ON:
        raise CudnnError(f"{version} knows cards from Turing on; 9.10 is the last to know older ones")


class Heuristics:
    """CuDNN's heuristics for one kind of card.

    Args:
        capability: compute capability.
        sm_count: multiprocessors; None for an A100's.

    Raises:
        OSError: cuDNN cannot be loaded.
        CudnnError: it does not know such a card, or is too old to answer for one that is not there.
    """

    def __init__(self, capability: tuple[int, int], sm_count: int | None = None) -> None:
        find_every_product()
        self._generation = Generation.of(capability, sm_count)
        self._sm_count = sm_count
        self._library = Library()
        check_known(capability, self.version)
        self._device = Descriptor(self._library, Kind.DEVICE_PROPERTIES)
        self._device.set(Attribute.DEVICE_JSON, Type.CHAR, device_description(capability, sm_count).encode())
        self._device.finalize()

    @property
    def version(self) -> str:
        """CuDNN's version, as in ``9.19.0``."""
        return self._library.version

    def workspace_bytes(self, convolution: Convolution) -> int | None:
        """Return the workspace of the engine that a card would be proposed first; None where none is."""
        of_depthwise = depthwise_bytes(convolution, self._generation)
        return self._first_proposals_bytes(convolution) if of_depthwise is None else of_depthwise

    def search_bytes(self, convolution: Convolution) -> int | None:
        """Return the largest workspace among all that is proposed; None where nothing is."""
        found: list[int] = []
        for mode in (_INSTANT, _FALLBACK):
            with suppress(CudnnError):
                proposed = self._proposals(convolution, mode, at_most=_MOST_PROPOSALS)
                found += (self._bytes_on_card(convolution, each) for each in proposed)
        return max(found, default=None)

    def _first_proposals_bytes(self, convolution: Convolution) -> int | None:
        at_most = _MOST_PROPOSALS if _refused_notes(convolution) else 1
        for mode in (_INSTANT, _FALLBACK):
            with suppress(CudnnError):
                for first in self._proposals(convolution, mode, at_most=at_most):
                    return self._bytes_on_card(convolution, first)
        return None

    def _bytes_on_card(self, convolution: Convolution, proposed: Descriptor) -> int:
        """Return the workspace of a proposal; on Hopper with the parts of tiles that run on the card."""
        told_bytes = _workspace_bytes(proposed)
        if self._generation is not Generation.HOPPER:
            return told_bytes
        engine = self._engine(proposed)
        kernel = None if engine is None else engine.cluster_kernel
        if kernel is None:
            return told_bytes
        sm_count = self._sm_count or _LARGE_HOPPER_SM_COUNT
        found = workspace_on_card(convolution, kernel, sm_count, told_bytes=told_bytes)
        return told_bytes if found is None else found

    def _engine(self, config: Descriptor) -> Engine | None:
        """Return what a plan of a proposal would run; None where no plan can be made."""
        plan = Descriptor(self._library, Kind.PLAN)
        plan.refer_to(Attribute.PLAN_CONFIG, config)
        plan.refer_to(Attribute.PLAN_DEVICE, self._device)
        try:
            plan.finalize()
        except CudnnError:
            return None
        engine = json.loads(plan.text(Attribute.PLAN_JSON))["engine"]
        return Engine(number=engine["engineId"], knobs=engine["knobChoices"])

    def _proposals(self, convolution: Convolution, mode: int, *, at_most: int) -> Iterator[Descriptor]:
        """Yield what is proposed without a refused note, best first (``filterEngineConfigs`` in PyTorch)."""
        graph = self._graph(convolution)
        heuristics = Descriptor(self._library, Kind.HEURISTICS)
        heuristics.refer_to(Attribute.HEURISTICS_GRAPH, graph[-1])
        heuristics.set(Attribute.HEURISTICS_MODE, Type.HEURISTICS_MODE, [mode])
        heuristics.refer_to(Attribute.HEURISTICS_DEVICE, self._device)
        heuristics.finalize()
        refused = _refused_notes(convolution)
        proposed = [Descriptor(self._library, Kind.ENGINE_CONFIG) for _ in range(at_most)]
        for config in proposed[: heuristics.fill(Attribute.HEURISTICS_RESULTS, proposed)]:
            if not refused or refused.isdisjoint(self._notes(config)):
                yield config

    def _notes(self, config: Descriptor) -> list[int]:
        engine = Descriptor(self._library, Kind.ENGINE)
        config.fill(Attribute.ENGINE_CONFIG_ENGINE, [engine])
        return engine.numbers(Attribute.ENGINE_NUMERICAL_NOTES, Type.NUMERICAL_NOTE, at_most=_MOST_NOTES)

    def _graph(self, convolution: Convolution) -> list[Descriptor]:
        """Return the descriptors of a graph of one operation; the graph is the last and refers to the others."""
        tensors = [
            self._tensor(number, shape, convolution)
            for number, shape in enumerate(
                (convolution.weight_shape, convolution.input_shape, convolution.output_shape), start=1
            )
        ]
        window = self._window(convolution)
        kind, attribute = _OPERATIONS[convolution.kernel]
        operation = Descriptor(self._library, kind)
        operation.set(attribute + _ALPHA, Type.FLOAT, [1.0])
        operation.set(attribute + _BETA, Type.FLOAT, [0.0])
        operation.refer_to(attribute + _CONVOLUTION, window)
        for place, tensor in zip((_WEIGHT, _INPUT, _OUTPUT), tensors, strict=True):
            operation.refer_to(attribute + place, tensor)
        operation.finalize()
        graph = Descriptor(self._library, Kind.OPERATION_GRAPH)
        graph.refer_to(Attribute.GRAPH_OPERATIONS, operation)
        return [*tensors, window, operation, graph.finalize()]

    def _tensor(self, number: int, shape: tuple[int, ...], convolution: Convolution) -> Descriptor:
        tensor = Descriptor(self._library, Kind.TENSOR)
        tensor.set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, [_DATA_TYPES[convolution.dtype]])
        tensor.set(Attribute.TENSOR_DIMENSIONS, Type.INT64, shape)
        tensor.set(Attribute.TENSOR_STRIDES, Type.INT64, strides_of(shape, channels_last=convolution.channels_last))
        tensor.set(Attribute.TENSOR_ID, Type.INT64, [number])
        tensor.set(Attribute.TENSOR_ALIGNMENT, Type.INT64, [_ALIGNMENT_BYTES])
        return tensor.finalize()

    def _window(self, convolution: Convolution) -> Descriptor:
        window = Descriptor(self._library, Kind.CONVOLUTION)
        computes_in = "float64" if convolution.dtype == "float64" else "float32"
        window.set(Attribute.CONVOLUTION_COMPUTE_TYPE, Type.DATA_TYPE, [_DATA_TYPES[computes_in]])
        window.set(Attribute.CONVOLUTION_MODE, Type.CONVOLUTION_MODE, [_CROSS_CORRELATION])
        window.set(Attribute.CONVOLUTION_DIMENSIONS, Type.INT64, [len(convolution.stride)])
        window.set(Attribute.CONVOLUTION_STRIDES, Type.INT64, convolution.stride)
        window.set(Attribute.CONVOLUTION_PADDINGS_BEFORE, Type.INT64, convolution.padding)
        window.set(Attribute.CONVOLUTION_PADDINGS_AFTER, Type.INT64, convolution.padding)
        window.set(Attribute.CONVOLUTION_DILATIONS, Type.INT64, convolution.dilation)
        return window.finalize()


def device_description(capability: tuple[int, int], sm_count: int | None = None) -> str:
    """Return the JSON by which cuDNN is told of a card, by its compute capability and multiprocessors."""
    told = {"deviceVer": 100 * capability[0] + 10 * capability[1]}
    if sm_count is not None:
        told["multiProcessorCount"] = sm_count
    return json.dumps({**_DEVICE, **told})


def _workspace_bytes(config: Descriptor) -> int:
    return config.numbers(Attribute.ENGINE_CONFIG_WORKSPACE_BYTES, Type.INT64)[0]


def _refused_notes(convolution: Convolution) -> frozenset[int]:
    rounds = () if convolution.with_tf32 or convolution.dtype != "float32" else (_TENSOR_CORE, _ROUNDS_INPUTS)
    return frozenset((*rounds, *((_NONDETERMINISTIC,) if convolution.deterministic else ())))


def strides_of(shape: tuple[int, ...], *, channels_last: bool) -> tuple[int, ...]:
    """Return the strides in elements of a dense tensor whose first two dimensions are batch and channels."""
    if not channels_last:
        return tuple(reversed(list(accumulate(reversed(shape[1:]), lambda steps, size: steps * size, initial=1))))
    samples, channels, *space = shape
    batch, *within, innermost = strides_of((samples, *space, channels), channels_last=False)
    return (batch, innermost, *within)
