"""A digest of functions and what they refer to, the same in every process that makes them from the same code.

What cloudpickle writes will not do: it names classes of ``__main__`` at random and orders sets by their hashes. Here
functions count by their bytecode, constants, defaults, closures and the globals they name; what can be imported counts
by its name, and its module is returned to be counted by its source.

Not counted: the values of parameters, which the memory of a step does not follow; what lies beyond
``_MAX_VALUES`` values or, in one tensor or array, beyond its first and last part; and what
is neither plain, nor made by code, nor taken apart by ``__reduce_ex__``.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import secrets
import sys
import types
from dataclasses import dataclass
from typing import Any

from memplan.units import MIB

_MAX_VALUES = 200_000
_WHOLE_BYTES = 64 * MIB
_PART_OBJECTS = 10_000  # of an array of objects, at either end
_PART_BYTES = MIB
_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
# What a class statement adds to a class by itself, and where a definition is in its file.
_BY_ITSELF = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDigest:
    """The digest of a value.

    Args:
        sha256: digest of the value.
        modules: dotted names of the modules whose code it refers to.
    """

    sha256: str
    modules: tuple[str, ...]


def value_digest(value: object) -> ValueDigest:
    """Digest a value and everything it refers to."""
    walk = _Walk()
    try:
        walk.feed(value)
    except RecursionError:  # nested too deeply to be digested: unlike any other value, then
        walk.feed(secrets.token_hex(16))
    return ValueDigest(sha256=walk.hash.hexdigest(), modules=tuple(sorted(walk.modules)))


class _Walk:
    """Walks values in a fixed order; a value met again counts as a reference to where it was met first."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.modules: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []

    def feed(self, value: object) -> None:
        if isinstance(value, _SCALARS):
            self._say(type(value).__name__, repr(value))
        elif id(value) in self._numbers:
            self._say("again", str(self._numbers[id(value)]))
        elif len(self._numbers) < _MAX_VALUES:
            self._numbers[id(value)] = len(self._numbers)
            self._kept.append(value)  # an id is that of one value only while it lives
            self._feed_new(value)

    def _feed_new(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            self._all(type(value).__name__, *value)
        elif type(value) is dict:
            self._all("dict", *(each for pair in value.items() for each in pair))
        elif isinstance(value, set | frozenset):
            self._all("set", *sorted(_separately(each) for each in value))
        elif isinstance(value, types.ModuleType):
            self._name("module", value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        else:
            self._feed_object(value)

    def _feed_object(self, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self._all("method", value.__func__, value.__self__)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType):
            self._say("built-in", f"{value.__module__} {value.__qualname__}")
        elif isinstance(value, functools.partial):
            self._all("partial", value.func, value.args, value.keywords)
        elif isinstance(value, staticmethod | classmethod):
            self._all(type(value).__name__, value.__func__)
        elif isinstance(value, property):
            self._all("property", value.fget, value.fset)
        elif (tell := getattr(type(value), "digest_parts", None)) is not None:
            self._all(type(value).__qualname__, tell(value))
        elif (content := _array_content(value)) is not None:
            self._all("array", *content)
        else:
            self._reduced(value)

    def _reduced(self, value: Any) -> None:
        """Take an object apart as pickle would."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - any object of the user's, which then counts by its type
            self._name("object", type(value).__module__)
            self._say("type", type(value).__qualname__)
            return
        if isinstance(parts, str):
            self._name("global", f"{type(value).__module__} {parts}")
            return
        constructor, arguments, state, members, items = (*parts, None, None, None)[:5]
        self._all("object", constructor, arguments, state, list(members or ()), list(items or ()))

    def _function(self, function: types.FunctionType) -> None:
        if _is_importable(function):
            self._name("function", f"{function.__module__} {function.__qualname__}")
            return
        cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
        self._all("function", function.__code__, function.__defaults__, function.__kwdefaults__, *cells)
        if function.__module__ not in (None, "__main__"):
            self.modules.add(function.__module__)
        for name in sorted(_names_in(function.__code__)):
            if name in function.__globals__:
                self._all(name, function.__globals__[name])

    def _code(self, code: types.CodeType) -> None:
        self._say("code", f"{code.co_name} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_flags}")
        self._all("bytes", code.co_code, code.co_consts)

    def _class(self, kind: type) -> None:
        if kind.__module__ == "builtins" or _is_importable(kind):
            self._name("class", f"{kind.__module__} {kind.__qualname__}")
            return
        members = {name: each for name, each in vars(kind).items() if name not in _BY_ITSELF}
        self._all("class", kind.__qualname__, kind.__bases__, members)

    def _name(self, kind: str, dotted: str) -> None:
        self.modules.add(dotted.partition(" ")[0])
        self._say(kind, dotted)

    def _all(self, kind: str, *values: object) -> None:
        self._say(kind, str(len(values)))
        for each in values:
            self.feed(each)

    def _say(self, *words: str) -> None:
        for word in words:
            content = word.encode(errors="surrogatepass")
            self.hash.update(len(content).to_bytes(8, "big") + content)


def _separately(value: object) -> str:
    return value_digest(value).sha256


def _is_importable(value: Any) -> bool:
    """Whether another process gets the value by importing its module, which ``__main__`` is not."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or value.__module__ == "__main__":
        return False
    found: Any = module
    for part in value.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is value


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises when it is read
    except ValueError:
        return False
    return True


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _array_content(value: Any) -> tuple[object, ...] | None:
    """Return what distinguishes a tensor or an array from others; None for anything else."""
    if not all(hasattr(value, name) for name in ("shape", "dtype", "__array__")):
        return None
    kind = (type(value).__qualname__, tuple(value.shape), str(value.dtype))
    if type(value).__qualname__ == "Parameter":
        return (*kind, value.requires_grad)
    try:
        array = _as_array(value)
        if array.dtype.hasobject:  # its bytes are addresses
            held = array.ravel()
            parts = [held] if held.size <= 2 * _PART_OBJECTS else [held[:_PART_OBJECTS], held[-_PART_OBJECTS:]]
            return (*kind, *(part.tolist() for part in parts))
        content = memoryview(array).cast("B")
    except Exception:  # noqa: BLE001 - sparse, half, on a card that refuses: what it is like still counts
        return kind
    if content.nbytes <= _WHOLE_BYTES:
        return (*kind, hashlib.sha256(content).hexdigest())
    return (*kind, bytes(content[:_PART_BYTES]), bytes(content[-_PART_BYTES:]))


def _as_array(value: Any) -> Any:
    """Return a contiguous array of the same values, without torch or NumPy being imported for it."""
    if hasattr(value, "untyped_storage"):
        flat = value.detach().cpu().contiguous().flatten()
        return flat.view(sys.modules["torch"].uint8).numpy()
    return sys.modules["numpy"].ascontiguousarray(value)
