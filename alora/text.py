"""Bytes, JSON objects and YAML values of a file; text for a terminal, and remarks on standard error."""

import errno
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import yaml

from alora.errors import AloraError

LONGEST = 16 * 2**20  # bytes of a file of settings, of a record, of a request
LARGEST_YAML = 4 * 2**20  # bytes
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all but tab and newline


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """The bytes of a file; OSError when it cannot be read or holds more than ``longest``."""
    with path.open("rb") as stream:
        return read_stream(stream, longest)


def read_stream(stream: BinaryIO, longest: int = LONGEST) -> bytes:
    """All of ``stream``; OSError when there is more of it than ``longest`` bytes."""
    content = stream.read(longest + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"is longer than {longest // 2**20} MiB")
    return content


def lone_surrogate(text: str) -> int | None:
    """Where ``text`` holds half of a surrogate pair, which no Unicode text does; None where it is sound."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_digest(content: Mapping[str, Any]) -> str:
    """sha256 of a record's canonical JSON, its own ``sha256`` left out. The order of keys counts."""
    bare = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(bare, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()


def printable(text: str) -> str:
    """``text`` for a terminal, which obeys what others wrote: control and direction characters are escaped."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def note(text: str) -> None:
    """Print a remark on standard error, so that a pipe does not read it."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def read_json(path: Path, refusal: type[AloraError], remedy: str) -> dict[str, Any]:
    """The object in a JSON file; ``refusal`` when it cannot be read, or holds something else."""
    try:
        content = json.loads(read_whole(path).decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, not an object")
        return content
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        refused = refusal(f"{path} cannot be read as JSON ({reason}); {remedy}")
        refused.code = "DAMAGED"  # as alora.received has it
        raise refused from error


def read_yaml(path: Path, refusal: type[AloraError], remedy: str, loader: Any = None) -> Any:
    """The value in a YAML file, in the dialect of ``loader`` (PyYAML's safe one by default); ``refusal`` when it cannot
    be read, or holds something else than JSON's types."""
    try:
        text = read_whole(path, LARGEST_YAML).decode("utf-8-sig")
        value = _undated(loader or yaml.SafeLoader)(text).get_single_data()
        if (odd := _no_json(value)) is not None:
            raise TypeError(f"{str(odd)[:60]!r} is read as {type(odd).__name__}; write it without a tag, and in quotes")
        return value
    except OSError as error:
        raise refusal(f"{path}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise refusal(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        tab = "\\t" in str(error.problem)
        remedy = "indent by blanks, not by tabs" if tab else "put texts with ':' or '#' in quotes"
        raise refusal(f"{path}{line}: not YAML: {error.problem}; {remedy}") from error
    except RecursionError as error:
        raise refusal(f"{path}: its lists and mappings are nested too deep; write it flatter") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise refusal(f"{path}: not YAML: {' '.join(str(error).split())[:300]}") from error


def _undated(loader: Any) -> Any:
    """``loader``, to which a date is text."""

    class Undated(loader):
        yaml_implicit_resolvers: ClassVar = {
            first: [(tag, form) for tag, form in known if tag != "tag:yaml.org,2002:timestamp"]
            for first, known in loader.yaml_implicit_resolvers.items()
        }

    return Undated


def _no_json(value: Any) -> Any:
    """The first part of ``value`` that is none of JSON's types but what a tag makes; None where there is none."""
    if type(value) in (list, dict):
        parts = value if isinstance(value, list) else [*value, *value.values()]
        return next((odd for part in parts if (odd := _no_json(part)) is not None), None)
    return None if value is None or type(value) in (str, int, float, bool) else value


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below nested mappings with its dotted key; an empty mapping is one."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
