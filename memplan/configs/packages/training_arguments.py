"""Read a file with transformers' own parser.

Only for a child process, from which torch and accelerate are hidden: TrainingArguments then look at no device, so that
the file itself is checked against them, and not what this machine supports (they refuse bf16 and TF32 where no card has
them).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.languages.syntaxes import syntax_of
from memplan.configs.packages.messages import Reading, plain_member

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.documents import SourceFile

_LOOKS_AT_DEVICES = ("torch", "accelerate")
_NEED_OTHER_PACKAGES = ("deepspeed", "fsdp", "fsdp_config", "lr_scheduler_type")  # some of their values need torch
_LOADED_BY_THE_PARSER: dict[str, Callable[[str], Any]] = {
    "YAML": yaml.safe_load,  # as ``parse_yaml_file`` does
    "JSON": json.loads,  # as ``parse_json_file`` does
}


def read(files: tuple[SourceFile, ...]) -> Reading:
    """Return the arguments among a file's values as the package has them."""
    for each in _LOOKS_AT_DEVICES:
        sys.modules[each] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
    source = files[-1]
    syntax = syntax_of(source.path)
    own: dict[str, Any] = {} if syntax.load is None else as_plain(syntax.load(source.text, where=source.path.name))
    load = _LOADED_BY_THE_PARSER.get(syntax.name)
    values = syntax.resolve(source.text, own) if load is None else load(source.text)
    return Reading(own=own, package=_parsed(values, from_words=load is None))


def _parsed(values: dict[str, Any], *, from_words: bool) -> dict[str, Any]:
    """Return what TrainingArguments hold; keys that they do not have are left out."""
    parser_class = importlib.import_module("transformers.hf_argparser").HfArgumentParser
    arguments_class = importlib.import_module("transformers.training_args").TrainingArguments
    fields = {each.name for each in dataclasses.fields(arguments_class) if each.init}
    own = {name: value for name, value in values.items() if name in fields and name not in _NEED_OTHER_PACKAGES}
    parser = parser_class(arguments_class)
    if from_words:
        parser.error = _refuse
        (arguments,) = parser.parse_args_into_dataclasses(_words(own), look_for_args_file=False)
    else:
        (arguments,) = parser.parse_dict(own)
    return {name: plain_member(getattr(arguments, name)) for name in own}


def _words(values: dict[str, Any]) -> list[str]:
    """Return flags as the training program gets them."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, list) else [value]))
    ]


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
