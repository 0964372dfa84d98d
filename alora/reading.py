"""Read files that a user names, within bounds: no endless device, no pipe without a writer, no bomb, no link out."""

import errno
import hashlib
import json
import os
import re
import select
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import yaml

from alora.errors import AloraError
from alora.typed import typed

LONGEST = 16 * 2**20  # bytes; of JSON, Python holds up to forty times that
# Of YAML, with every alias written out: characters, and 64 more for each node, which take a kilobyte of memory each.
LARGEST_YAML, NODE = 4 * 2**20, 64
DEEPEST = 50  # levels of YAML
PATIENCE = 10.0  # seconds until somebody writes to a named pipe
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all but tab and newline
_DEEP = "nested too deep"
_Kind = TypeVar("_Kind")
# The hub's cache: snapshots/REVISION/NAME -> ../../blobs/DIGEST, and of a battery NAME/NAME, one step up more.
_HUB_BLOB = re.compile(r"(\.\./)?\.\./\.\./blobs/[0-9a-f]+")


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """The bytes of a file, or of a pipe (a shell's ``<(...)``).

    Raises:
        OSError: it cannot be read, is a device or a pipe that nobody writes to, or holds more than ``longest`` bytes.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        kind = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise OSError(errno.EINVAL, "is a device and no file")
        # A shell's own pipe has no name to be found under, and a writer that may take its time.
        named = stat.S_ISFIFO(kind) and Path(os.path.realpath(path)).exists()
        if named and not select.select([stream], [], [], PATIENCE)[0]:
            raise OSError(errno.ENXIO, "is a pipe, and nobody writes to it")
        os.set_blocking(stream.fileno(), True)
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


def read_json(path: Path, refusal: type[AloraError], remedy: str) -> dict[str, Any]:
    """The object in a JSON file; ``refusal`` when it cannot be read, or holds something else."""
    try:
        content = json.loads(read_whole(path).decode("utf-8"), parse_constant=_no_number)
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, not an object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        reason = _DEEP if isinstance(error, RecursionError) else getattr(error, "strerror", None) or error
        raise refusal(f"{path} cannot be read as JSON ({reason}); {remedy}") from error


def read_typed(kind: type[_Kind], path: Path, refusal: type[AloraError], remedy: str, **version: int) -> _Kind:
    """The object in a JSON file as the dataclass ``kind``, one of whose fields is its ``version``.

    Raises:
        refusal: it cannot be read, is of another version, or not as ``kind`` has it.
    """
    content = read_json(path, refusal, remedy)
    for name, known in version.items():
        if content.get(name) != known:
            said = f"{name} is {str(content.get(name))[:40]}, and this alora reads {known}"
            raise refusal(f"{path}: {said}; install the one that wrote it, or {remedy}")
    try:
        return typed(kind, content)
    except (TypeError, ValueError, RecursionError) as error:
        reason = _DEEP if isinstance(error, RecursionError) else error
        raise refusal(f"{path} is damaged ({reason}); {remedy}") from error


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_yaml(path: Path, refusal: type[AloraError], remedy: str, loader: Any = None) -> Any:
    """The value in a YAML file, in the dialect of ``loader`` (PyYAML's safe one by default).

    Raises:
        refusal: it cannot be read, has a key twice, or is larger than its settings can be, once aliases are followed.
    """
    try:
        return parse_yaml(read_whole(path, LARGEST_YAML).decode("utf-8-sig"), loader)
    except OSError as error:
        raise refusal(f"{path}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise refusal(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        if error.note:  # a bound of ours
            raise refusal(f"{path}{line}: {error.problem}; {error.note}") from error
        raise refusal(f"{path}{line}: not YAML: {error.problem}; put texts with ':' or '#' in quotes") from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise refusal(f"{path}: not YAML: {' '.join(str(error).split())[:300]}") from error


def parse_yaml(text: str, loader: Any = None) -> Any:
    """The value in a YAML text within bounds, of JSON's types alone; raises what PyYAML and its constructors raise."""
    value = _bounded(loader or yaml.SafeLoader)(text).get_single_data()
    if (odd := _no_json(value)) is not None:
        raise TypeError(f"{str(odd)[:60]!r} is read as {type(odd).__name__}; write it without a tag, and in quotes")
    return value


def _no_json(value: Any) -> Any:
    """The first part of ``value`` that is none of JSON's types but what a tag makes; None where there is none."""
    if type(value) in (list, dict):
        parts = value if isinstance(value, list) else [*value, *value.values()]
        return next((odd for part in parts if (odd := _no_json(part)) is not None), None)
    return None if value is None or type(value) in (str, int, float, bool) else value


def _bounded(loader: Any) -> Any:
    """``loader`` with bounds on depth and size, which reads no key twice."""

    class Bounded(loader):
        yaml_implicit_resolvers: ClassVar = {  # a date is text
            first: [(tag, form) for tag, form in known if tag != "tag:yaml.org,2002:timestamp"]
            for first, known in loader.yaml_implicit_resolvers.items()
        }

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.depth = self.size = 0
            self.anchored: dict[str, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event, before = self.peek_event(), self.size
            alias = isinstance(event, yaml.AliasEvent)
            self.size += self.anchored.get(event.anchor, 0) if alias else NODE + len(getattr(event, "value", ""))
            self.depth += 1
            if self.depth > DEEPEST:
                self.refuse(event, f"nested deeper than {DEEPEST} levels", "no settings are that deep")
            if self.size > LARGEST_YAML or (alias and self.anchored.get(event.anchor) == 0):
                self.refuse(event, "too large, with its aliases written out", "no settings are that large")
            if not alias and event.anchor:
                self.anchored[event.anchor] = 0  # an alias to it from inside has no end
            node = super().compose_node(parent, index)
            if not alias and event.anchor:
                self.anchored[event.anchor] = self.size - before
            self.depth -= 1
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, known = super().compose_mapping_node(anchor), set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if (key.tag, key.value) in known:
                        self.refuse(key, f"the key {key.value!r} is there twice", "rename or remove one")
                    known.add((key.tag, key.value))
            return node

        def construct_scalar(self, node: Any) -> Any:
            if node.tag != self.DEFAULT_SCALAR_TAG and len(node.value) > 1000:
                self.refuse(node, "a number of more than 1000 digits", "put texts in quotes")
            return super().construct_scalar(node)

        def refuse(self, item: Any, problem: str, remedy: str) -> None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=item.start_mark, note=remedy)

    return Bounded


def require_plain(folder: Path, error: type[AloraError], *names: str) -> None:
    """Check a folder that may come from elsewhere: only files and folders lie in it, so no reader (alora's, PEFT's or
    vLLM's) leaves it or blocks.

    ``folder`` itself may be a link, being what the user named. Hidden folders (a checkout's ``.git``), which nothing
    reads, are not looked into; links of the hub's own cache lead to its own blobs.

    Args:
        names: of the entries to look at, with all below them; none: all.

    Raises:
        error: something in it is a link, a pipe, a socket or a device.
    """
    waiting = [folder / name for name in names] if names else _entries(folder, error)
    while waiting:
        path = waiting.pop()
        try:
            kind = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as failure:
            raise error(f"{path} cannot be read: {failure.strerror}") from failure
        if stat.S_ISDIR(kind):
            waiting += [] if path.name.startswith(".") else _entries(path, error)
        elif not stat.S_ISREG(kind) and not _in_hub_cache(path):
            what = "a link, and may lead to any file of yours" if stat.S_ISLNK(kind) else "no file"
            raise error(f"{path} is {what}; put the file itself there, or get the folder again")


def _entries(folder: Path, error: type[AloraError]) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:  # what reads it says so
        return []
    except OSError as failure:
        raise error(f"{folder} cannot be read: {failure.strerror}") from failure


def _in_hub_cache(link: Path) -> bool:
    """Whether ``link`` is one that huggingface_hub made, straight to a file of its cache."""
    try:
        target, snapshot = str(link.readlink()), link.parent.resolve()
    except OSError:
        return False
    named = _HUB_BLOB.fullmatch(target)
    if named is None:
        return False
    snapshot = snapshot.parent if named[1] else snapshot
    blobs = snapshot.parent.parent / "blobs"
    blob = blobs / Path(target).name  # not there after a download that was cut short
    return snapshot.parent.name == "snapshots" and not (blobs.is_symlink() or blob.is_symlink()) and blob.is_file()
