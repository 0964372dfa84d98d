"""A folder or a file that somebody sent: listed once, decoded once into a frozen typed record, and trusted from there.

Only plain files lie in it, of the sizes and digests that its record lists. A refusal's ``code`` is one of the four
below.
"""

import functools
import json
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from alora.errors import AloraError
from alora.text import content_digest, read_json, sha256_of

DAMAGED = "DAMAGED"  # it cannot be read, or lacks something
CHANGED = "CHANGED"  # it is not as it was written
NEWER = "NEWER"  # another version of alora wrote it
NOT_OURS = "NOT_OURS"  # it is something else
SEAL = "sha256"  # the key of a record's digest of itself
_SHOWN = 5  # problems of a record
_SETTLED_NS = 2 * 10**9  # a file that was written to less than this ago may change again without another time
_KINDS = {str: "a text", list: "a list", dict: "an object"}  # whose content is not shown
_OF_UNION = re.compile(r"str|bool|predicate|choice|list\[.*")  # pydantic's names for them where a value may be several
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class FileRecord:
    """A file: its size in bytes and the sha256 of its bytes."""

    size: int
    sha256: str


class Folder:
    """A folder that somebody sent, in which no link lies, so that no reader (alora's, PEFT's or vLLM's) leaves it.

    It may be a link itself, being what the user named, and what huggingface_hub links to its own cache may lie in it.
    ``names`` are of the entries to look at, with all below them; none: all.
    """

    def __init__(self, path: Path, refusal: type[AloraError], remedy: str, *names: str) -> None:
        self.path, self.refusal, self.remedy = path, refusal, remedy
        entries = [entry for top in [path / name for name in names] or [path] for entry in _below(top, top != path)]
        for entry in entries:
            if entry.is_symlink() and not _in_hub_cache(entry):
                way = "put the file itself there, or get the folder again"
                raise refused(refusal, CHANGED, f"{entry} is a link, and may lead to any file of yours; {way}")
        self.files = frozenset(entry.relative_to(path).as_posix() for entry in entries if entry.is_file())

    def json(self, name: str) -> dict[str, Any]:
        """The object in its file ``name``."""
        return read_json(self.path / name, self.refusal, self.remedy)

    def require_there(self, listed: Collection[str]) -> None:
        """Refuse it where it lacks a file that its record lists."""
        if missing := sorted(set(listed) - self.files):
            raise refused(self.refusal, DAMAGED, f"{self.path} lacks {', '.join(missing)}; {self.remedy}")

    def require_same(self, listed: Mapping[str, FileRecord]) -> None:
        """Refuse it unless the files that its record lists are as they were when it was written."""
        for name, expected in listed.items():
            try:
                found = file_record(self.path / name)
            except OSError as error:
                why = f"{self.path / name} cannot be read: {error.strerror or error}; {self.remedy}"
                raise refused(self.refusal, DAMAGED, why) from error
            if found != expected:
                state = "was changed after it was written"
                if found.size != expected.size:
                    state = "is cut short" if found.size < expected.size else "is longer than it was written"
                sizes = f"{found.size} bytes of sha256 {found.sha256[:12]}, {expected.size} of {expected.sha256[:12]}"
                raise refused(self.refusal, CHANGED, f"{self.path / name} {state}: {sizes} expected; {self.remedy}")


def file_record(file: Path) -> FileRecord:
    """The size and digest that ``file`` has now. A process reads each file once, until it is written to."""
    at = file.stat()
    state = at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns
    settled = time.time_ns() - max(at.st_mtime_ns, at.st_ctime_ns) > _SETTLED_NS
    return FileRecord(at.st_size, _remembered(file.resolve(), state) if settled else sha256_of(file))


@functools.lru_cache(maxsize=10_000)
def _remembered(file: Path, _state: tuple[int, ...]) -> str:
    return sha256_of(file)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its digest of itself."""
    return {**content, SEAL: content_digest(content)}


def unsealed(content: Mapping[str, Any], where: object, refusal: type[AloraError], remedy: str) -> dict[str, Any]:
    """A record without its digest; refused where it was edited. A record without one was written before it had one."""
    if SEAL in content:
        require_sealed(content, where, refusal, remedy)
    return {name: value for name, value in content.items() if name != SEAL}


def read_record(kind: type[_Kind], file: Path, refusal: type[AloraError], remedy: str, **version: int) -> _Kind:
    """The object in a JSON file as the dataclass ``kind``, one of whose fields is its ``version``."""
    content = unsealed(read_json(file, refusal, remedy), file, refusal, remedy)
    for name, known in version.items():
        require_version(content, file, refusal, remedy, name, known)
    try:
        return decode(kind, content)
    except TypeError as error:
        raise refused(refusal, DAMAGED, f"{file} is damaged ({error}); {remedy}") from error


def require_version(
    content: Mapping[str, Any], where: object, refusal: type[AloraError], remedy: str, name: str, known: int
) -> None:
    """Refuse a record of another version; ``name`` is the key of the version."""
    found = content.get(name)
    if type(found) is not int or found != known:  # true and 1.0 equal 1
        newer = type(found) is int and found > known
        said = f"{name} is {str(found)[:40]}, and this alora reads {known}"
        way = "upgrade with `pip install -U alora-toolkit`" if newer else "install the one that wrote it"
        raise refused(refusal, NEWER if newer else NOT_OURS, f"{where}: {said}; {way}, or {remedy}")


def require_sealed(content: Mapping[str, Any], where: object, refusal: type[AloraError], remedy: str) -> None:
    """Refuse a record that was edited after it was written, by its digest of itself."""
    if content.get(SEAL) != content_digest(content):
        raise refused(refusal, CHANGED, f"{where} was changed after it was written (its {SEAL} differs); {remedy}")


def decode(kind: Any, value: Any, key: str = "") -> Any:
    """Plain data as a ``kind``: a dataclass, a sequence or mapping with its inner kinds, a union or a JSON type.

    Nothing is converted but a whole number to a float, and no key is unknown. TypeError has the key of each problem.
    """
    from pydantic import ValidationError  # a tenth of a second, which `alora --help` goes without

    try:
        return _adapter(kind).validate_json(json.dumps([value]))[0]
    except ValidationError as error:
        raise TypeError(problems([{**each, "loc": each["loc"][1:]} for each in error.errors()], key)) from error


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a tuple, because a dataclass of the standard library takes no configuration of its own.
    wrapped: Any = tuple[kind]  # pyright: ignore[reportInvalidTypeForm]
    return TypeAdapter(wrapped, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def problems(errors: Sequence[Mapping[str, Any]], key: str = "") -> str:
    """What pydantic finds wrong with a value below ``key``: where, what it is and must be, without the text in it."""
    found, errors = dict[str, dict[str, None]](), errors[:50]
    # Of the kinds that a value may be of, the one that it comes nearest to counts: the furthest error.
    ranks = [(each["loc"][:1], not each["type"].endswith("_type"), len(each["loc"])) for each in errors]
    best = {rank[0]: rank for rank in sorted(ranks, key=lambda rank: rank[1:])}
    for each in (each for each, rank in zip(errors, ranks, strict=True) if rank == best[rank[0]]):
        context, path = each.get("ctx") or {}, [step for step in each["loc"] if not _OF_UNION.fullmatch(str(step))]
        path += ["type"] * ("discriminator" in context)
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        where = f"{key}{where}".lstrip(".")[:200] or "it"
        must = re.sub(r"^Value error, | after validation| or (an )?instance of \w+", "", each["msg"])
        must = f"Input should be {context['expected_tags']}" if "tag" in context else must
        if each["type"].startswith(("missing", "union_tag_not", "unexpected")):
            where, must = f"{where} is {'unknown' if 'unexpected' in each['type'] else 'missing'}", ""
        elif must == (must := must.removeprefix("Input should be ").replace("dictionary", "object")):
            where = "" if where == "it" else f"{where}: "
        else:
            given = context.get("tag", each["input"])
            named = isinstance(given, str) and {"tag", "expected"} & context.keys()
            kind = None if named else _KINDS.get(type(given))
            where = f"{where} is {kind or repr(given)[:40]}; it must be "
        found.setdefault(where, {})[must[:200]] = None
    return "; ".join(where + " or ".join(must) for where, must in [*found.items()][:_SHOWN])


def refused(refusal: type[AloraError], code: str, message: str) -> AloraError:
    """The error, with its ``code``."""
    error = refusal(message)
    error.code = code
    return error


def _below(top: Path, itself: bool) -> list[Path]:
    """All entries below ``top``, and itself where it is there; no link is followed."""
    below = [Path(home) / name for home, folders, files in os.walk(top) for name in (*folders, *files)]
    return [top, *below] if itself and os.path.lexists(top) else below


def _in_hub_cache(link: Path) -> bool:
    """Whether ``link`` leads to a blob of the cache of huggingface_hub in which it lies."""
    file = Path(os.path.realpath(link))  # resolve() does not take a link to itself
    snapshots = file.parent.parent / "snapshots"
    return file.parent.name == "blobs" and file.is_file() and snapshots in link.parent.resolve().parents
