"""How packages read files of configs; each runs in a child process, where the package is imported."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from memplan.configs.evaluation.plain_data import as_plain, yaml_values
from memplan.configs.evaluation.yaml_config import laid_over_in_order
from memplan.configs.keys import get, leaves, with_value
from memplan.configs.languages.registry import language_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.documents import SourceFile

_OPTION = "memplan-config"  # which no program's own option is called
_LOOKS_AT_DEVICES = ("torch", "accelerate")
_NEED_OTHER_PACKAGES = ("deepspeed", "fsdp", "fsdp_config", "lr_scheduler_type")  # some of their values need torch
_LOADED_BY_THE_PARSER: dict[str, Callable[[str], Any]] = {
    "YAML": yaml.safe_load,  # as ``parse_yaml_file`` does
    "JSON": json.loads,  # as ``parse_json_file`` does
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a config evaluates to.

    Args:
        own: all values, as memplan reads them.
        package: the package's reading of them, its defaults included.
    """

    own: dict[str, Any]
    package: dict[str, Any]


def read_with_pyyaml(files: tuple[SourceFile, ...]) -> Reading:
    """Return the values of the last file, for programs that use nothing but PyYAML."""
    source = files[-1]
    package = as_plain(yaml.safe_load(source.text), where=str(source.path))
    return Reading(own=yaml_values(source), package=package)


def read_with_accelerate(files: tuple[SourceFile, ...]) -> Reading:
    """Return what ``accelerate launch --config_file`` reads from the last file, without its defaults."""
    own = yaml_values(files[-1])
    load = importlib.import_module("accelerate.commands.config.config_args").load_config_from_file
    with tempfile.TemporaryDirectory() as folder:
        found = vars(load(str(_copy(files[-1], Path(folder, "launch.yaml")))))
    return Reading(own=own, package={name: _plain_member(found[name]) for name in own if name in found})


def read_with_jsonargparse(files: tuple[SourceFile, ...]) -> Reading:
    """Return the values of files, the later over the earlier, as LightningCLI takes repeated ``--config`` options.

    The program's own parser is not known here, nor are its classes imported: every value of the files is an argument of
    its own, and of any type. So what jsonargparse says is what it reads, which file wins, and what ``key+`` is appended
    to.
    """
    own = laid_over_in_order(files)
    parser = importlib.import_module("jsonargparse").ArgumentParser(exit_on_error=False)
    parser.add_argument(f"--{_OPTION}", action="config")
    names = {key: key.removesuffix("+") for key in leaves(own)}
    for key, name in names.items():
        is_list = key != name or isinstance(get(own, key), list)
        parser.add_argument(f"--{name}", type=list[Any] if is_list else Any)
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(each, Path(folder, f"{index}.yaml")) for index, each in enumerate(files)]
        found = parser.parse_args([f"--{_OPTION}={each}" for each in copies]).as_dict()
    laid: dict[str, Any] = {}
    for key, name in names.items():
        laid = with_value(laid, key, get(found, name))
    return Reading(own=own, package=laid)


def read_with_transformers(files: tuple[SourceFile, ...]) -> Reading:
    """Return the arguments among the last file's values as transformers' own parser has them.

    torch and accelerate are hidden from it: TrainingArguments then look at no device, so that the file itself is
    checked against them, and not what this machine supports (they refuse bf16 and TF32 where no card has them).
    """
    for each in _LOOKS_AT_DEVICES:
        sys.modules[each] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
    source = files[-1]
    language, where = language_of(source.path), str(source.path)
    own = {} if language.load is None else as_plain(language.load(source.text, where=where), where=where)
    load = _LOADED_BY_THE_PARSER.get(language.name)
    values = language.resolve(source.text, own) if load is None else load(source.text)
    return Reading(own=own, package=_as_training_arguments(values, from_words=load is None))


def _copy(source: SourceFile, path: Path) -> Path:
    path.write_bytes(source.text.encode())
    return path


def _as_training_arguments(values: dict[str, Any], *, from_words: bool) -> dict[str, Any]:
    """Return what TrainingArguments hold; keys that they do not have are left out."""
    parser_class = importlib.import_module("transformers.hf_argparser").HfArgumentParser
    arguments_class = importlib.import_module("transformers.training_args").TrainingArguments
    known = {each.name for each in fields(arguments_class) if each.init}
    own = {name: value for name, value in values.items() if name in known and name not in _NEED_OTHER_PACKAGES}
    parser = parser_class(arguments_class)
    if from_words:
        parser.error = _refuse
        (arguments,) = parser.parse_args_into_dataclasses(_words(own), look_for_args_file=False)
    else:
        (arguments,) = parser.parse_dict(own)
    return {name: _plain_member(getattr(arguments, name)) for name in own}


def _words(values: dict[str, Any]) -> list[str]:
    """Return flags as the training program gets them."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, list) else [value]))
    ]


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _plain_member(value: Any) -> Any:
    """Return what a member of an enumeration stands for, and anything else as it is."""
    return value.value if isinstance(value, Enum) else value
