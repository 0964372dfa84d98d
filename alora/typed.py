"""Plain data into dataclasses, and nested mappings into dotted keys."""

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below nested mappings with its dotted key; an empty mapping is one."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def typed(kind: Any, value: Any, key: str = "") -> Any:
    """``value`` as a ``kind``: a dataclass, a sequence or mapping with its inner kinds, a union or a JSON type.

    Raises:
        TypeError: it is something else, or a dataclass's key is missing or unknown; the message names the key.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # of JSON types, or of one kind and None
        return typed(next((candidate for candidate in inner if type(value) is candidate), inner[0]), value, key)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return _record(kind, value, key)
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        return {name: typed(inner[1], item, f"{key}.{name}") for name, item in value.items()}
    if origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
        kinds = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(value)
        if len(kinds) == len(value):
            sequence = list if origin is list else tuple
            return sequence(typed(kinds[at], item, f"{key}[{at}]") for at, item in enumerate(value))
    if (
        kind is float
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max  # neither NaN nor infinite
    ):
        return float(value)
    if kind is Any or (type(value) is kind is not float):
        return value
    raise TypeError(f"{key} is {repr(value)[:60]}, which is not {_name(kind)}")


def _record(kind: Any, content: Mapping[str, Any], key: str) -> Any:
    kinds, prefix = typing.get_type_hints(kind), f"{key}." if key else ""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unset = (dataclasses.MISSING, dataclasses.MISSING)
    needed = [name for name, field in fields.items() if (field.default, field.default_factory) == unset]
    odd = [f"{prefix}{name} is missing" for name in needed if name not in content]
    odd += [f"{prefix}{name} is unknown" for name in content if name not in fields]
    if odd:
        raise TypeError(", ".join(odd[:5]))
    return kind(**{name: typed(kinds[name], value, f"{prefix}{name}") for name, value in content.items()})


def _name(kind: Any) -> str:
    if dataclasses.is_dataclass(kind) or typing.get_origin(kind) in (Mapping, dict):
        return "an object"
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    return words.get(kind, "a list of its length and kind")
