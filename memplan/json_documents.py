"""The one form in which memplan's values leave it for other programs: JSON documents that carry a version."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import PurePath
from typing import Any

_SCHEMA_VERSION = 1


def json_document(content: Mapping[str, Any]) -> str:
    """Write values as one document with its ``schema_version``."""
    return json.dumps(json_ready({"schema_version": _SCHEMA_VERSION, **content}), indent=2, allow_nan=False)


def json_ready(value: Any) -> Any:
    """Turn memplan's values into dicts, lists and scalars; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {name: json_ready(each) for name, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: json_ready(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple | list):
        return [json_ready(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, StrEnum | PurePath) else value
