"""Fingerprints of questions to memplan: two plans with the same fingerprint would come out the same.

Interrupted runs are resumed and finished plans found again by it, so everything that decides an answer must be in
it: code, config, options, device, driver, versions, the environment variables that the code or the command names, and
the environment's settings of allocators and thread pools.

Not counted: values of a config that are new each time it is run, data, files that the workload reads under names
not in its config, or a command under names neither in it nor in the files that it names, and what the modules of
:mod:`memplan.planning.digests` do not count.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.evaluation.loading import without_unsteady
from memplan.devices.cards import DeviceKind
from memplan.devices.processor import processor_name
from memplan.json_documents import json_ready
from memplan.planning.digests.code_digest import code_digest
from memplan.planning.digests.named_variables import named_variables, steady_variables
from memplan.units import MIB
from memplan.version import __version__
from memplan.workload import PickledWorkload, TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.planning.question import Question
    from memplan.planning.subject import Subject
    from memplan.workload import WorkloadReference

_SETTINGS = re.compile(
    r"PYTORCH_(CUDA_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING|CUBLAS_WORKSPACE_CONFIG|CUDA_MODULE_LOADING"
    r"|NVIDIA_TF32_OVERRIDE|TORCH_CUDNN_\w+|(OMP|MKL)_NUM_THREADS|MALLOC_\w+|LD_PRELOAD"
)
_CUDNN = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")  # asked about convolutions, whatever PyTorch's own build is
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FILE_NAME = re.compile(r"[\w./-]*\.\w+")
_INTEGRATIONS = "memplan.integrations."
_LARGEST_FILE_BYTES, _LONGEST_NAME = MIB, 256


def fingerprint_of(question: Question, surroundings: Mapping[str, str]) -> str:
    """Digest what decides a plan."""
    subject, request = question.subject, question.request
    facts = (
        _source_facts(subject),
        json_ready(subject.current),
        None if subject.config is None else _config_facts(subject.config),
        request.facts(),
        str(request.patch_style),
        _device_facts(question.device),
        dict(surroundings),
    )
    return hashlib.sha256(_canonical(facts).encode()).hexdigest()


def _device_facts(device: DeviceSpec) -> object:
    """Return what identifies a device, without the memory free on a CPU now or what was measured on a present card."""
    if device.kind is DeviceKind.CPU:
        return str(device.kind)
    if device.live_index is not None:
        device = replace(device, context=None)
    return json_ready(device)


def read_surroundings(device: DeviceSpec, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what decides a plan besides the user's own code and options: versions, processor and settings."""
    found = {
        "memplan": __version__,
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
    }
    found |= {name: version for name in _CUDNN if (version := _installed_version(name)) is not None}
    if device.live_index is None:  # trials run on this machine's processor
        found["processor"] = f"{processor_name()} x {len(os.sched_getaffinity(0))}"
    return found | {name: value for name, value in environment.items() if _SETTINGS.fullmatch(name)}


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source_facts(subject: Subject) -> tuple[object, ...]:
    source = subject.source
    if isinstance(source, PickledWorkload):
        return (source.fingerprint, json_ready(source.torch_settings))
    if isinstance(source, TrainingCommand):
        return _command_facts(source)
    own_module = source.target.partition(":")[0]
    modules = [own_module, *sorted(_modules_named_in(source))]
    if own_module.startswith(_INTEGRATIONS):
        modules.append(own_module.removeprefix(_INTEGRATIONS))  # which has the framework's name
    values = source.config if subject.config is None else without_unsteady(source.config, subject.config.document)
    return (source.target, values, code_digest(modules, source.search_path), _files_named_in(source))


def _command_facts(command: TrainingCommand) -> tuple[object, ...]:
    """Return a training command with the files and variables that it names, and the code behind its scripts."""
    words = [word.strip("\"'") for word in command.template.split()]
    folder = command.working_folder
    named = _files_among([*words, *([command.config_path] if command.config_path else [])], (folder,))
    small = [path.read_bytes() for path in named if path.stat().st_size <= _LARGEST_FILE_BYTES]
    beside = [name for text in small for name in _FILE_NAME.findall(text.decode(errors="replace"))]
    files = dict.fromkeys((*named, *_files_among(beside, (folder,), most_bytes=_LARGEST_FILE_BYTES)))
    scripts = [path for path in named if path.suffix == ".py"]
    modules = [path.stem for path in scripts]
    modules += [module for option, module in itertools.pairwise(words) if option == "-m"]
    folders = dict.fromkeys(str(each) for each in (*(path.parent for path in scripts), folder))
    variables = steady_variables(os.environ)
    read = [named_variables(each, variables) for each in (command.template.encode(), *small)]
    return (json_ready(command), _contents(files), read, code_digest(modules, tuple(folders)))


def _files_among(names: Iterable[str], folders: Sequence[str], most_bytes: int | None = None) -> list[Path]:
    """Return the files that some words name, each once, from the first folder that has it.

    Args:
        names: words, most of which name none.
        folders: where relative ones may lie.
        most_bytes: of a file; None for any size.
    """
    found = []
    for name in dict.fromkeys(names):
        for folder in folders if 0 < len(name) < _LONGEST_NAME and "\0" not in name else ():
            path = Path(folder, name)
            if path.is_file() and (most_bytes is None or path.stat().st_size <= most_bytes):
                found.append(path)
                break
    return found


def _contents(files: Iterable[Path]) -> list[tuple[str, str]]:
    return [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def _config_facts(config: UserConfig) -> tuple[object, ...]:
    """Return what decides the patch beside the values: where its files are, how it is read, what it said before."""
    original = config.original
    before = None if original is None else (json_ready(original.recipe), dict(original.values), dict(original.options))
    knobs = [(str(each.name), each.key) for each in config.knobs]
    files = [*map(str, config.document.laid_over), str(config.path)]
    beside = [(str(each.path), each.document.source.sha256) for each in config.companions]
    return (files, beside, config.format_name, knobs, before)


def _modules_named_in(source: WorkloadReference) -> set[str]:
    """Return the modules that the config names, alone or before a dot: registries' of the user, and installed ones."""
    named = {text.partition(".")[0] for text in _texts(source.config) if _DOTTED_NAME.fullmatch(text)}
    folders = [Path(folder) for folder in (*source.search_path, *sys.path)]
    return {name for name in named if any(_is_module(folder, name) for folder in folders)}


def _is_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _files_named_in(source: WorkloadReference) -> list[tuple[str, str]]:
    """Return the small files that the config names, such as another tool's, by their content."""
    names = sorted(set(_texts(source.config)))
    return _contents(_files_among(names, source.search_path, most_bytes=_LARGEST_FILE_BYTES))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _canonical(value: object) -> str:
    """Write nested data the same way whatever the order and the types of its keys."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{key!r}:{_canonical(each)}" for key, each in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_canonical(each) for each in value) + "]"
    return repr(value)
