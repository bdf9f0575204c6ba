"""Child process that reads a file with transformers' own parser, before and after a patch.

torch and accelerate are out of sight in it: TrainingArguments then look at no device, so that what the file says is
held against them, and not what this machine can do (they refuse bf16 and TF32 where no card has them).
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from memplan import children
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.evaluation.reader_messages import PackageAnswer, PackageRefusal
from memplan.configs.languages.shell_source import with_computed
from memplan.configs.languages.syntaxes import syntax_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs.evaluation.reader_messages import PackageRequest

_PACKAGE = "transformers"
_LOOKS_AT_DEVICES = ("torch", "accelerate")
_NEED_OTHER_PACKAGES = ("deepspeed", "fsdp", "fsdp_config", "lr_scheduler_type")  # some of their values need torch
_LOADED_BY_THE_PARSER: dict[str, Callable[[str], Any]] = {
    "YAML": yaml.safe_load,  # as ``parse_yaml_file`` does
    "JSON": json.loads,  # as ``parse_json_file`` does
}


def answer(request: PackageRequest, reply: Callable[[object], None]) -> None:
    """Reply with what the package makes of a patched text, or with a refusal that says which of the two it refuses."""
    path = Path(request.path)
    loader = f"{_PACKAGE} {importlib.metadata.version(_PACKAGE)}"
    of_original = True
    try:
        original, parsed = _read(path.read_text(encoding="utf-8"), path)
        of_original = False
        reply(_answer(original, parsed, *_read(request.text, path), loader))
    except Exception as error:  # noqa: BLE001 - whatever the package raises is its verdict on the file
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        reply(PackageRefusal(loader=loader, problem=problem, of_original=of_original))


def _answer(
    original: dict[str, Any], known: dict[str, Any], patched: dict[str, Any], parsed: dict[str, Any], loader: str
) -> PackageAnswer:
    """Take the package's word for every argument that it leaves as the original file has it.

    It rewrites some by itself, such as paths and lists of reporters; 3 epochs that become 3.0 are the same.
    """
    left = (name for name in parsed if name not in known or known[name] == original[name])
    judged = {name: patched[name] if parsed[name] == patched[name] else parsed[name] for name in left}
    changed = (name for name, value in patched.items() if name not in original or original[name] != value)
    return PackageAnswer(
        values={**patched, **judged}, loader=loader, unjudged=tuple(each for each in changed if each not in judged)
    )


def _read(text: str, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all values of a text as memplan reads them, and the arguments among them as the package does."""
    syntax = syntax_of(path)
    values: dict[str, Any] = {} if syntax.load is None else as_plain(syntax.load(text, where=path.name), [])
    load = _LOADED_BY_THE_PARSER.get(syntax.name)
    return values, _parsed(with_computed(text, values) if load is None else load(text), from_words=load is None)


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
    return {name: _plain(getattr(arguments, name)) for name in own}


def _words(values: dict[str, Any]) -> list[str]:
    """Return flags as the training program gets them."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, list) else [value]))
    ]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


if __name__ == "__main__":
    for each in _LOOKS_AT_DEVICES:
        sys.modules[each] = None  # type: ignore[assignment]  # how Python is told that there is no such module
    children.serve(answer)
