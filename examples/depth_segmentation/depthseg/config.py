"""Configs with ``_base_`` inheritance: Python files whose top-level names are the keys."""

import ast
import types
from pathlib import Path


def load_config(path, _open_files=()):
    """Run a config file and merge it into the files its ``_base_`` names."""
    path = Path(path).resolve()
    if path in _open_files:
        raise ValueError(f"{path}: its _base_ leads back to itself")
    own = _run(path)
    bases = own.pop("_base_", [])
    merged = {}
    for base in [bases] if isinstance(bases, str) else bases:
        inherited = load_config(path.parent / base, (*_open_files, path))
        if twice := merged.keys() & inherited.keys():
            raise ValueError(f"{path}: {', '.join(sorted(twice))} is set by more than one file of _base_")
        merged |= inherited
    return merge(merged, own)


def merge(base, child):
    """Lay ``child`` over ``base``: dicts key by key, the rest whole; ``_delete_=True`` drops the inherited dict."""
    merged = dict(base)
    for key, value in child.items():
        if not isinstance(value, dict):
            merged[key] = value
        elif value.get("_delete_") or not isinstance(merged.get(key), dict):
            merged[key] = merge({}, {name: each for name, each in value.items() if name != "_delete_"})
        else:
            merged[key] = merge(merged[key], value)
    return merged


def with_options(config, options):
    """Apply ``a.b=value`` settings from the command line; values are Python literals, anything else is text."""
    for option in options:
        dotted, equals, text = option.partition("=")
        if not equals:
            raise ValueError(f"option {option!r} is not of the form key=value")
        value = _literal(text)
        for key in reversed(dotted.split(".")):
            value = {key: value}
        config = merge(config, value)
    return config


def _run(path):
    names = {"__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)  # noqa: S102 - a config is code
    skipped = (types.ModuleType, types.FunctionType)
    return {key: each for key, each in names.items() if not key.startswith("__") and not isinstance(each, skipped)}


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
