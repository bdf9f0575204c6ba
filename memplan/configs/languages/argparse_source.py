"""Read the defaults of a script's ``argparse`` arguments from its syntax tree, and find where each is written.

The script is not run. An argument counts where its name is a literal; its key is the name ``argparse`` keeps it under.
``set_defaults`` wins over a default of the declaration. An argument of several parsers counts where all of
them have the same default. One that is unset and may be ``no`` is taken as that: scripts of accelerate leave their
``--mixed_precision`` to accelerate, whose own default it is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.python_source import span_of
from memplan.configs.languages.python_style import statements
from memplan.configs.languages.spans import Edit, Location

if TYPE_CHECKING:
    from collections.abc import Iterator

_SWITCHES = {"store_true": False, "store_false": True}
_BOTH_WAYS = "BooleanOptionalAction"
_PLAIN_TYPES = ("int", "float", "str")
_WITH_WORDS = ("store", "append", "extend")
_OFF = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One declared argument.

    Args:
        key: the name under which ``argparse`` keeps its value.
        flags: how the command line may call it.
        call: where it is declared.
        default: the expression of its default; None where it has none.
    """

    key: str
    flags: tuple[str, ...]
    call: ast.Call
    default: ast.expr | None

    @property
    def flag(self) -> str:
        """How the command line calls it, in full."""
        return next((each for each in self.flags if each.startswith("--")), self.flags[0])

    @property
    def type_name(self) -> str | None:
        """The name of the function that makes its values, or the type of its default, where that says more."""
        declared, value = self._declared_type, _default_value(self)
        if declared in _PLAIN_TYPES or value is None or isinstance(value, str):
            return declared
        return type(value).__name__

    @property
    def is_on_or_off(self) -> bool:
        """Whether it is on or off by default, so that a word behind its flag may say either."""
        return not self.is_switch and isinstance(_default_value(self), bool)

    @property
    def is_told_by_a_word(self) -> bool:
        """Whether a word behind its flag turns it off; ``type=bool`` takes every word for true."""
        return self.action is None and self._declared_type not in (None, "bool")

    @property
    def action(self) -> str | None:
        """What the parser does with it, by name; None for what it does if it is not told."""
        declared = next((each.value for each in self.call.keywords if each.arg == "action"), None)
        if declared is None:
            return None
        return str(declared.value) if isinstance(declared, ast.Constant) else ast.unparse(declared).rpartition(".")[2]

    @property
    def is_switch(self) -> bool:
        """Whether it has no word behind it."""
        return self.action not in (None, *_WITH_WORDS)

    @property
    def negated_flags(self) -> tuple[str, ...]:
        """Flags that turn it off, of a switch that works both ways; short ones have no such twin."""
        long = [each for each in self.flags if each.startswith("--")] if self.action == _BOTH_WAYS else []
        return tuple(each.replace("--", "--no-", 1) for each in long)

    @property
    def takes_several(self) -> bool:
        """Whether several words are behind it."""
        return any(each.arg == "nargs" for each in self.call.keywords)

    @property
    def _declared_type(self) -> str | None:
        return next((ast.unparse(each.value) for each in self.call.keywords if each.arg == "type"), None)

    def value_switched_by(self, flag: str) -> bool | None:
        """Return the value that a flag without a word behind it gives; None where it gives none."""
        if self.action == _BOTH_WAYS:
            return flag not in self.negated_flags
        found = _SWITCHES.get(self.action or "")
        return None if found is None else not found


def declares_arguments(text: str) -> bool:
    """Whether a Python text is a script that declares arguments, and not a config."""
    return "add_argument" in text and any(True for _ in arguments_in(text))


def load_arguments(text: str, *, where: str) -> dict[str, Any]:  # noqa: ARG001 - as the other languages' loaders
    """Return the defaults that are literals, by key; switches are off."""
    values = {key: [_default_value(each) for each in same] for key, same in _by_key(text).items()}
    return {key: found[0] for key, found in values.items() if found[0] is not None and _are_equal(found)}


def flag_in(text: str, key: str) -> str:
    """Return how the command line calls an argument."""
    return next((each.flag for each in arguments_in(text) if each.key == key), f"--{key}")


def switch_in(text: str, key: str, *, value: bool) -> str | None:
    """Return the flag that gives an argument a truth value without a word behind it; None where there is none."""
    found = (_switch(each, value=value) for each in _by_key(text).get(key, ()))
    return next((each for each in found if each is not None), None)


def is_told_by_a_word(text: str, key: str) -> bool:
    """Whether a word behind an argument's flag turns it off."""
    return any(each.is_told_by_a_word for each in _by_key(text).get(key, ()))


def _switch(argument: Argument, *, value: bool) -> str | None:
    flags = (argument.flag, *argument.negated_flags)
    return next((each for each in flags if argument.value_switched_by(each) is value), None)


def choices_in(text: str, key: str) -> tuple[Any, ...]:
    """Return the values that an argument takes, where these are literals; else none."""
    found = (_literals_of(each).get("choices") for each in _by_key(text).get(key, ()))
    return next((tuple(each) for each in found if isinstance(each, list | tuple)), ())


def locate_in_arguments(text: str, key: str) -> Location | None:
    """Find the default of an argument."""
    same = _by_key(text).get(key)
    if same is None:
        return None
    place, obstacle = same[0].default or same[0].call, None
    if len({each.default for each in same}) > 1:
        place, obstacle = same[0].call, "it is declared more than once"
    elif same[0].default is None or (isinstance(same[0].default, ast.Constant) and same[0].default.value is None):
        obstacle = "it has no default"
    elif not _is_literal(same[0].default):
        obstacle = "its default is computed"
    return Location(span=span_of(text, place), line=place.lineno, obstacle=obstacle)


def no_addition(_text: str, _entries: dict[str, str]) -> Edit | None:
    """Add nothing: a script does not know arguments that it does not declare."""
    return None


def _by_key(text: str) -> dict[str, list[Argument]]:
    found: dict[str, list[Argument]] = {}
    for each in arguments_in(text):
        found.setdefault(each.key, []).append(each)
    return found


def arguments_in(text: str) -> Iterator[Argument]:
    """Yield the arguments that a script declares, in order."""
    body = statements(text) or []
    later = {each.arg: each.value for call in _calls_of(body, "set_defaults") for each in call.keywords}
    for call in _calls_of(body, "add_argument"):
        names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        flags = [each for each in names if each.startswith("-")]
        if flags:
            declared = _argument(call, flags)
            yield replace(declared, default=later.get(declared.key, declared.default))


def _calls_of(body: list[ast.stmt], method: str) -> Iterator[ast.Call]:
    for node in (each for statement in body for each in ast.walk(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _are_equal(values: list[Any]) -> bool:
    return all(type(each) is type(values[0]) and each == values[0] for each in values)


def _argument(call: ast.Call, flags: list[str]) -> Argument:
    keywords = {each.arg: each.value for each in call.keywords if each.arg is not None}
    named = keywords.get("dest")
    key = named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
    argument = Argument(key=key or "", flags=tuple(flags), call=call, default=keywords.get("default"))
    return argument if key is not None else replace(argument, key=argument.flag.lstrip("-").replace("-", "_"))


def _default_value(argument: Argument) -> Any:
    if argument.default is not None and not _is_literal(argument.default):
        return None
    given = _literals_of(argument)
    action, choices = given.get("action"), given.get("choices")
    value = _SWITCHES.get(action) if isinstance(action, str) else None
    value = value if argument.default is None else ast.literal_eval(argument.default)
    return _OFF if value is None and isinstance(choices, list | tuple) and _OFF in choices else value


def _literals_of(argument: Argument) -> dict[str | None, Any]:
    """Return the keywords of a declaration that are literals."""
    return {each.arg: ast.literal_eval(each.value) for each in argument.call.keywords if _is_literal(each.value)}


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
