"""The parent's side: find cuDNN, start the child, take its answers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.children import run_child
from memplan.estimators.cudnn.library import LIBRARY

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_LIMIT_S = 60.0
_WORKER_MODULE = "memplan.estimators.cudnn.worker"
_BEGINS_STACKS = "Fatal Python error"  # printed by Python's faulthandler, after cuDNN's own message
_NOT_INSTALLED = "cuDNN is not installed here (`pip install 'memplan[cudnn]'` lets memplan ask it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnQuestions:
    """What cuDNN is asked.

    Args:
        capability: compute capability of the card.
        convolutions: the calls.
        sm_count: multiprocessors of the card; None where they are not known.
        searched: calls for which PyTorch times every algorithm (``torch.backends.cudnn.benchmark``).
    """

    capability: tuple[int, int]
    convolutions: tuple[Convolution, ...]
    sm_count: int | None = None
    searched: tuple[Convolution, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnAnswers:
    """What cuDNN answered.

    Args:
        version: of cuDNN, as in ``9.19.0``.
        workspace_bytes: of each call, in order; None where cuDNN proposes nothing for it.
        search_bytes: the largest workspace among all that cuDNN proposes for each searched call, in order, None where
            it proposes nothing; empty where it took too long.
    """

    version: str
    workspace_bytes: tuple[int | None, ...]
    search_bytes: tuple[int | None, ...] = ()


def ask(questions: CudnnQuestions) -> CudnnAnswers | str:
    """Ask cuDNN in a child process; where it does not answer, return why, in a few words.

    Raises:
        ChildError: the child could not be started.
    """
    folders = library_folders()
    if not folders:
        return _NOT_INSTALLED
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    ending = run_child(
        _WORKER_MODULE,
        questions,
        watch=lambda _pid, age_s: "cuDNN takes too long to answer" if age_s > _LIMIT_S else None,
        environment={"LD_LIBRARY_PATH": path, "CUDA_VISIBLE_DEVICES": ""},
    )
    if ending.messages:
        answer: CudnnAnswers | str = ending.messages[-1]
        return answer
    last_words = ending.log_tail.partition(_BEGINS_STACKS)[0].strip().rpartition("\n")[2]
    return ending.stop_reason or f"cuDNN ended its process (status {ending.return_code}: {last_words})"


def library_folders() -> tuple[Path, ...]:
    """Return the folders of NVIDIA's libraries that pip installed; none where cuDNN is not among them."""
    spec = find_spec("nvidia")
    places = () if spec is None else (spec.submodule_search_locations or ())
    folders = tuple(folder for place in places for folder in sorted(Path(place).glob("*/lib")))
    return folders if any((folder / LIBRARY).exists() for folder in folders) else ()
