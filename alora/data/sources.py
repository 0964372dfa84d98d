"""Where rows come from: text files, Parquet files, the hub. Each row is plain data, with where it stands."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from alora.data.files import SEPARATORS, Row, class_names, read_text, shortened, with_class_names, without_nulls
from alora.errors import DataError, MissingDependency, one_line

HUB = "hub:"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
# What a card says of any format; the rest is of how datasets would read the files.
_OF_ANY_CONFIG = {"name", "version", "data_dir", "data_files", "description", "features"}
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")  # without an owner, datasets takes it for a format or for none
Source = str | Sequence[str]  # a file or a data set, or several whose rows follow each other


def each(source: Source) -> list[str]:
    """The sources of a setting that names one or several."""
    return [source] if isinstance(source, str) else list(source)


def named(source: Source) -> str:
    """The sources of a setting as a message shows them."""
    return ", ".join(each(source))


def read_rows(source: str, notes: Counter[str]) -> Iterator[Row]:
    """Every row of ``source``: a file, or ``hub:NAME``, ``hub:NAME:SPLIT``, ``hub:NAME:CONFIG:SPLIT``.

    A row that cannot be read says why, and reading goes on.
    """
    if source.startswith(HUB):
        return _read_hub(source, notes)
    path = Path(source)
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the files in it, such as a .jsonl")
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    return _read_file(path, path.name, {}, notes)


def _read_file(path: Path, name: str, classes: Mapping[str, Sequence[str]], notes: Counter[str]) -> Iterator[Row]:
    suffix = Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _read_parquet(path, name, classes)
    if suffix in (*JSON_SUFFIXES, *TABLE_SUFFIXES):
        rows = read_text(path, name, suffix in TABLE_SUFFIXES, notes)
        return (with_class_names(row, classes) for row in rows)
    known = ", ".join((*JSON_SUFFIXES, *TABLE_SUFFIXES, PARQUET_SUFFIXES[0]))
    raise DataError(f"{path}: the ending {suffix!r} is not known; give {known} (text also with .gz) or hub:NAME")


def _read_parquet(path: Path, name: str, classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    import pyarrow.parquet  # clients of a server go without

    try:
        with pyarrow.parquet.ParquetFile(path) as file:  # one batch in memory at a time
            # Names of class numbers, as the package datasets writes them.
            with suppress(ValueError, KeyError, TypeError):
                info = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])["info"]
                classes = {**classes, **class_names(info["features"])}
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
            for number, value in enumerate(rows, 1):
                cells = {column: without_nulls(cell) for column, cell in value.items()}
                yield with_class_names(Row(f"{name}:{number}", cells), classes)
    # Arrow takes texts that are not UTF-8 and dates beyond Python's; both fail only as they become Python's own.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read: {one_line(error)}") from error


def _read_hub(source: str, notes: Counter[str]) -> Iterator[Row]:
    """The rows of a data set's files, which ``datasets`` finds (splits, configurations, patterns in the card) and which
    are read as a user's own are: no cell becomes a number or a date by a guess, and no file unpacks without bounds."""
    parts = source.removeprefix(HUB).split(":")
    if len(parts) > 3 or not all(parts):
        raise DataError(f"{source!r}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    name, split = parts[0], parts[-1] if len(parts) > 1 else "train"
    builder = _find_hub(name, parts[1] if len(parts) == 3 else None)
    files = {str(part): found for part, found in (builder.config.data_files or {}).items()}
    if split not in files:
        raise DataError(f"{source}: there is no split {split!r}; it has {', '.join(files)}")
    classes = class_names(builder.info.features.to_dict() if builder.info.features else {})
    for address in files[split]:
        file, path = _fetch_hub(address, builder.repo_id, source)
        yield from _read_file(path, file, classes, notes)


@cache  # one commit, however often its rows are read, and for each of its splits
def _find_hub(name: str, config: str | None) -> Any:
    """What ``datasets`` finds of a data set; it reads its card and the names of its files."""
    source = f"{HUB}{name}" + (f":{config}" if config else "")
    if not _HUB_NAME.fullmatch(name) or Path(name).exists():
        raise DataError(
            f"{source}: hub: names a data set of the hub, as OWNER/NAME, and {name} is none; give a folder's files, "
            f"such as {Path(name) / 'train.jsonl'}. What save_to_disk wrote, to_parquet writes as files"
        )
    try:
        import datasets  # slow to import, and clients of a server go without
    except ImportError as error:
        raise MissingDependency(f"{source} needs the package datasets; pip install datasets") from error
    # Without the cache of datasets, which holds another data set where the hub does not answer or the card says so.
    with _of_the_hub(source), TemporaryDirectory() as nothing:
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, cache_dir=nothing)
    card, usual = builder.config, type(builder.config)()
    odd = {item.name for item in fields(usual) if getattr(usual, item.name) != getattr(card, item.name)}
    if odd := sorted(name for name in odd - _OF_ANY_CONFIG if getattr(card, name) not in SEPARATORS):
        raise DataError(f"{source}: its card sets {', '.join(odd)} for datasets, which alora reads no file by; mend it")
    return builder


def _fetch_hub(address: str, name: str, source: str) -> tuple[str, Path]:
    """A file of a data set: its name there, and the copy of it in the hub's cache."""
    from datasets.config import HF_ENDPOINT
    from huggingface_hub import hf_hub_download

    own = re.fullmatch(rf"hf://datasets/{re.escape(name)}@([0-9a-f]+)/([^:]+)", address)
    if not own or ".." in own[2].split("/"):  # datasets takes x/../../hf: for its own, and fsspec opens a chain of `::`
        raise DataError(
            f"{source} leads to {shortened(address)}, which is not a file of the data set; mend its README.md"
        )
    with _of_the_hub(source):
        copy = hf_hub_download(name, own[2], repo_type="dataset", revision=own[1], endpoint=HF_ENDPOINT)
    return own[2], Path(copy)


@contextmanager
def _of_the_hub(source: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's clients raise a dozen kinds
        raise DataError(
            f"{source}: the data set cannot be loaded: {one_line(error)}; check name and network, or download it and "
            "give its files"
        ) from error
