"""What one line of the schema says: a setting's default, its meaning, and the values that it may have."""

import copy
import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from alora.config.secrets import redacted

LARGEST = 2**32  # the most of a number whose line says none, so that no product of two leaves 64 bits


@dataclass(frozen=True)
class Limits:
    """The meaning of a setting and its values. In a list or a dictionary they hold for each item."""

    meaning: str = ""
    least: float = -math.inf
    most: float = LARGEST
    above: float = -math.inf
    below: float = math.inf
    also: tuple[float, ...] = ()  # numbers outside the range with a meaning of their own
    choices: tuple[str, ...] = ()
    form: tuple[Callable[[str], object], str] | None = None  # whether a text is right, and what it must be
    some: bool = False  # neither an empty list nor an empty text
    distinct: bool = False  # a list without repetitions
    refused: Mapping[str, str] = field(default_factory=dict)  # values that one may expect, and why they are no choice
    in_files: tuple[Any, ...] | None = None  # what a file may give, the default first; the rest only the command line
    read_by: tuple[str, ...] | None = None  # a file or folder: the verbs that cannot run without it when it is named
    of: tuple[str, ...] | None = None  # the verbs that use it; None: those of read_by, else of its section

    @property
    def words(self) -> str:
        """The values, for a message and for the reference."""
        if self.form is not None:
            return self.form[1]
        if self.choices:
            return ", ".join(self.choices)
        return self._range() + "".join(f", or {number}" for number in self.also)

    def _range(self) -> str:
        if self.most < LARGEST and self.least > -math.inf:
            return f"between {self.least:g} and {self.most:.10g}"
        low = f"{self.least:g} or more" if self.least > -math.inf else ""
        low = f"more than {self.above:g}" if self.above > -math.inf else low
        if self.most < LARGEST:
            return f"{low} and at most {self.most:.10g}"
        return f"{low} and less than {self.below:g}" if self.below < math.inf else low

    def problem(self, key: str, value: Any) -> str | None:
        """What is wrong with ``value`` of the setting ``key``; None when it may stand there."""
        items = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and self.form is None:
            items = [*value, *value.values()]
        if self.some and value in ([], ""):
            remedy = "list at least one" if value == [] else f"give a value, or {key}=null for none"
            return f"{key} is empty; {remedy}"
        repeated = self.distinct and len(set(items)) < len(items)
        if value is None or not (repeated or any(not self._allows(item) for item in items)):
            return None
        return f"{key} is {redacted(repr(value))[:200]}; {self.refused.get(str(value)) or self._remedy(value)}"

    def _allows(self, item: Any) -> bool:
        if self.form is not None:
            return isinstance(item, str) and bool(self.form[0](item))
        if isinstance(item, str):
            return not self.choices or item in self.choices
        if isinstance(item, bool) or item in self.also:
            return True
        return self.least <= item <= self.most and self.above < item < self.below

    def _remedy(self, value: Any) -> str:
        if not isinstance(value, list) or self.form is not None:
            return f"choose one of {self.words}" if self.choices else f"it must be {self.words}"
        what = f"some of {self.words}" if self.choices else f"numbers, each {self.words}" if self.words else "values"
        return f"list {what}" + (", none of them twice" if self.distinct else "")


def setting(default: Any, meaning: str = "", **limits: Any) -> Any:
    """A field of the schema; ``limits`` are those of :class:`Limits`."""
    metadata = {"limits": Limits(meaning, **limits)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type, *of: str) -> Any:
    """A field of the schema with fields of its own, used by the verbs ``of``; none named: by all."""
    return field(default_factory=kind, metadata={"limits": Limits(of=of or None)})


@functools.cache
def settings_of(section: type) -> tuple[tuple[str, Any, Limits], ...]:
    """Every dotted key of a section with its type and limits; sections come before their own keys."""
    hints, found = get_type_hints(section), []
    for item in fields(section):
        kind = hints[item.name]
        found.append((item.name, kind, item.metadata.get("limits", Limits())))
        if is_dataclass(kind):
            found += [(f"{item.name}.{key}", below, limits) for key, below, limits in settings_of(kind)]  # type: ignore[arg-type]
    return tuple(found)


_FOLDER = re.compile(r"(?!\.{1,2}$)(?=.*\S)[^/\\\0]+", re.DOTALL)


def names_a_folder(text: str) -> bool:
    """Whether a file system takes ``text`` for one folder."""
    return bool(_FOLDER.fullmatch(text)) and len(text.encode("utf-8", "surrogatepass")) <= 200


def is_server(url: str) -> bool:
    """Whether ``url`` can be asked at all: HTTP, a host, and no port that cannot be."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number or above 65535, half an IPv6 address
        return False
    return usable and url.isprintable() and " " not in url


def is_scorer(text: str) -> bool:
    """Whether verdicts can be computed by ``text``: in this process, by vLLM, or by a server."""
    return text in ("vllm", "packed") or is_server(text)
