"""Load a config file of any language; Python ones in a child process with a time limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.children import ChildEnding, run_child, stop_after
from memplan.configs.documents import Document, read_source, require_keys
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.evaluation.reader_messages import ReadAnswer, ReadRequest
from memplan.configs.evaluation.yaml_config import read_yaml
from memplan.configs.keys import contains, differences, with_value
from memplan.configs.languages.argparse_source import declares_arguments
from memplan.configs.languages.python_style import is_program
from memplan.configs.languages.registry import ARGUMENTS, PYTHON, YAML, language_of
from memplan.errors import ConfigError
from memplan.user_places import seen_from_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.documents import SourceFile
    from memplan.configs.languages.registry import Language

READ_TIMEOUT_S = 30.0
_TAKES_ARGUMENTS = re.compile(
    r"\bargv\b|argparse|\bcli\b|click|typer|tyro|hydra|draccus|simple_parsing|\bfire\b|absl|docopt", re.IGNORECASE
)


def load_document(
    path: Path, *, texts: Mapping[str, str] | None = None, laid_over: Sequence[Path] | None = None
) -> Document:
    """Load a config file and what it inherits.

    Args:
        path: the file.
        texts: absolute path -> text to take instead of what is on disk.
        laid_over: YAML files that the training command names before it, in order; None for those that memplan noted.

    Raises:
        ConfigError: it cannot be read, is invalid, raises, or does not end within ``READ_TIMEOUT_S`` seconds.
    """
    source = read_source(path, texts=texts)
    language = _language_of(source)
    if language.load is None:
        return _evaluated(source, language, texts or {})
    if language is YAML:
        return read_yaml(source, texts or {}, laid_over=laid_over)
    where, notes = str(source.path), list[str]()
    values = as_plain(language.load(source.text, where=where), notes, where=where)
    return Document(source=source, language=language, values=require_keys(values, source.path), notes=tuple(notes))


def load_patched(document: Document, path: Path, texts: Mapping[str, str]) -> Document:
    """Load a patched config: the file itself, or a child, which names what it inherits from.

    Raises:
        ConfigError: as for :func:`load_document`.
    """
    return load_document(path, texts=texts, laid_over=document.laid_over if path == document.path else None)


def unsteady_keys(document: Document) -> frozenset[str]:
    """Return the dotted keys whose values differ each time a config is run, such as names made of the time.

    It is run once more, at a later time as far as it can tell; without an import it has nothing that differs.
    """
    if document.language.load is not None or not _imports_anything(document):
        return frozenset()
    try:
        again = _read_in_child(document.path, {}, clock_is_ahead=True)
    except ConfigError:
        return frozenset()
    return frozenset(differences(document.values, again.values))


def without_unsteady(values: Mapping[str, Any], document: Document) -> Mapping[str, Any]:
    """Return values that come from a config with None in place of those that differ each time it is run."""
    for key in unsteady_keys(document):
        if contains(values, key):
            values = with_value(values, key, None)
    return values


def _imports_anything(document: Document) -> bool:
    return any("import" in each.text for each in (document.source, *document.inherited))


def _language_of(source: SourceFile) -> Language:
    """Return the language of a file; a script that declares arguments must not be run to be read."""
    language = language_of(source.path)
    return ARGUMENTS if language is PYTHON and declares_arguments(source.text) else language


def _evaluated(source: SourceFile, language: Language, texts: Mapping[str, str]) -> Document:
    """Run a config in a child process.

    Raises:
        ConfigError: it is a program, or does not load.
    """
    if is_program(source.text):
        raise ConfigError(
            "this is a program, not a config, and is not run to be read",
            where=str(source.path),
            hint=f"name its config, or have memplan run it on this machine: {_how_to_run(source)}",
        )
    read = _read_in_child(source.path, texts)
    return Document(source=source, language=language, values=read.values, inherited=read.files[1:], notes=read.notes)


def _how_to_run(source: SourceFile) -> str:
    """Return the command that tries a program, which takes its batch size as an argument or from a variable."""
    script = seen_from_here(source.path)
    if _TAKES_ARGUMENTS.search(source.text):
        return f'memplan probe --command "python {script} ... {{micro_batch_size}}"'
    variable = "let it read its batch size from a variable, as by int(os.environ['BATCH'])"
    return f'{variable}, and memplan probe --command "BATCH={{micro_batch_size}} python {script}"'


def _read_in_child(path: Path, texts: Mapping[str, str], *, clock_is_ahead: bool = False) -> ReadAnswer:
    import_path = (str(Path.cwd()), str(path.parent))
    request = ReadRequest(path=str(path), texts=dict(texts), import_path=import_path, clock_is_ahead=clock_is_ahead)
    watch = stop_after(READ_TIMEOUT_S, "it did not load")
    ending = run_child("memplan.configs.evaluation.python_reader", request, watch=watch)
    message = ending.messages[-1] if ending.messages else None
    if isinstance(message, ConfigError):
        raise message
    if isinstance(message, ReadAnswer):
        return message
    raise _without_answer(path, ending)


def _without_answer(path: Path, ending: ChildEnding) -> ConfigError:
    reason = ending.stop_reason or f"it ended the process that read it (exit status {ending.return_code})"
    return ConfigError(reason, where=str(path), hint="a config must load by itself", detail=ending.log_tail)
