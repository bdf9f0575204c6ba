"""Error messages of PyTorch and its libraries, for failures that have no exception type of their own. Pure.

The texts are those of PyTorch 2.9 to 2.13 (``c10/core/impl/alloc_cpu.cpp``, ``aten/src/ATen/cuda/Exceptions.h``,
``c10/cuda/CUDAException.cpp``, ``torch/csrc/distributed/c10d/NCCLUtils.hpp``). Whether a text means memory can depend
on how full the device is.
"""

from __future__ import annotations

from memplan.results import OutcomeKind

_WORKER_TRACEBACK = "Original Traceback (most recent call last):"  # ExceptionWrapper in torch/_utils.py
LINE_LIMIT = 300  # characters of evidence
_HOST_MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "unable to mmap",
)
_DEVICE_MEMORY_TEXTS = (
    "CUDA error: out of memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "Failed to CUDA calloc",
    "Cuda failure 'out of memory'",  # of NCCL before and since it tells the error's number
    "Cuda failure 2 'out of memory'",
)
# Libraries that could not create a handle or a plan say these, mostly but not only for lack of memory.
_DEVICE_MEMORY_TEXTS_WHERE_FULL = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUFFT_INTERNAL_ERROR",
    "mha_graph.execute",
    "nable to find an engine to execute this computation",
)
_ONEDNN_TEXTS = ("could not create a primitive", "could not execute a primitive")
_HOST_MEMORY_TEXTS_WHERE_FULL = ("can't start new thread", *_ONEDNN_TEXTS)
_KERNEL_TEXTS = (
    "CUDA error:",
    "CUDA driver error:",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "cuDNN error:",
    "CUFFT_",
    "mha_graph.execute",
    *_ONEDNN_TEXTS,
)


def memory_kind_of_text(text: str, *, memory_is_full: bool) -> OutcomeKind | None:
    """Return which memory a ``RuntimeError`` with this text ran out of; None where it is about something else."""
    if _any_in(_HOST_MEMORY_TEXTS + (_HOST_MEMORY_TEXTS_WHERE_FULL if memory_is_full else ()), text):
        return OutcomeKind.HOST_OUT_OF_MEMORY
    if _any_in(_DEVICE_MEMORY_TEXTS + (_DEVICE_MEMORY_TEXTS_WHERE_FULL if memory_is_full else ()), text):
        return OutcomeKind.DEVICE_OUT_OF_MEMORY
    return None


def is_kernel_text(text: str) -> bool:
    """Whether a ``RuntimeError`` with this text is a failed kernel or launch."""
    return _any_in(_KERNEL_TEXTS, text)


def one_line(type_name: str, text: str) -> str:
    """Return an exception's type with the first line of its text, cut to what fits into a report.

    A line that ends in a colon announces what went wrong, and the next one goes with it. Of what was raised in a worker
    of a data loader, the traceback's last line tells that.
    """
    if _WORKER_TRACEBACK in text:
        type_name, _, text = text.strip().splitlines()[-1].partition(": ")
    first, second, *_ = (*(line.strip() for line in text.splitlines() if line.strip()), "", "")
    told = f"{first} {second}".rstrip() if first.endswith(":") else first
    line = f"{type_name}: {told}" if told else type_name
    return line if len(line) <= LINE_LIMIT else f"{line[: LINE_LIMIT - 3]}..."


def _any_in(texts: tuple[str, ...], message: str) -> bool:
    return any(text in message for text in texts)
