"""Load a config file of any language; Python ones in a child process with a time limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.children import ChildEnding, run_child
from memplan.configs.documents import Document, read_source
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.evaluation.reader_messages import ReadAnswer, ReadRequest
from memplan.configs.evaluation.yaml_chain import YamlChain, read_chain
from memplan.configs.languages.argparse_source import declares_arguments
from memplan.configs.languages.python_style import is_program
from memplan.configs.languages.syntaxes import ARGUMENTS, PYTHON, YAML, syntax_of
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.documents import SourceFile
    from memplan.configs.languages.syntaxes import Syntax

READ_TIMEOUT_S = 30.0


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
    syntax = syntax_of(source.path)
    if syntax is PYTHON and declares_arguments(source.text):
        syntax = ARGUMENTS  # a script, which must not be run to be read
    if syntax.load is None:
        if is_program(source.text):
            line = f"python {path} ... {{micro_batch_size}}"
            raise ConfigError(
                "this is a program, not a config, and is not run to be read",
                where=str(source.path),
                hint=f'name its config, or have memplan run it: memplan probe --command "{line}"',
            )
        reading = _read_in_child(source.path, texts or {})
        return Document(
            source=source, syntax=syntax, values=reading.values, inherited=reading.files[1:], notes=reading.notes
        )
    chain = _read_here(source, syntax, texts or {}, laid_over)
    if not isinstance(chain.values, dict):
        raise ConfigError(
            "the config does not hold keys and values at its top",
            where=str(source.path),
            hint="name the training config",
        )
    return Document(
        source=source,
        syntax=syntax,
        values=chain.values,
        inherited=chain.inherited,
        laid_over=chain.laid_over,
        notes=chain.notes,
    )


def load_patched(document: Document, path: Path, texts: Mapping[str, str]) -> Document:
    """Load what a patch makes of a config: the file itself, or a child, which says what it is made of.

    Raises:
        ConfigError: as for :func:`load_document`.
    """
    return load_document(path, texts=texts, laid_over=document.laid_over if path == document.path else None)


def _read_here(
    source: SourceFile, syntax: Syntax, texts: Mapping[str, str], laid_over: Sequence[Path] | None
) -> YamlChain:
    if syntax is YAML:
        return read_chain(source, texts, laid_over=laid_over)
    notes: list[str] = []
    values = None if syntax.load is None else as_plain(syntax.load(source.text, where=str(source.path)), notes)
    return YamlChain(values=values, notes=tuple(notes))


def _read_in_child(path: Path, texts: Mapping[str, str]) -> ReadAnswer:
    request = ReadRequest(path=str(path), texts=dict(texts), import_path=(str(Path.cwd()), str(path.parent)))
    ending = run_child("memplan.configs.evaluation.python_reader", request, watch=_too_long)
    message = ending.messages[-1] if ending.messages else None
    if isinstance(message, ConfigError):
        raise message
    if isinstance(message, ReadAnswer):
        return message
    raise _without_answer(path, ending)


def _too_long(_pid: int, age_s: float) -> str | None:
    return f"it did not load within {READ_TIMEOUT_S:.0f} s" if age_s > READ_TIMEOUT_S else None


def _without_answer(path: Path, ending: ChildEnding) -> ConfigError:
    reason = ending.stop_reason or f"it ended the process that read it (exit status {ending.return_code})"
    return ConfigError(reason, where=str(path), hint="a config must load by itself", detail=ending.log_tail)
