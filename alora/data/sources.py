"""Where rows come from: text files, Parquet files, the hub. Each row is plain data, with where it stands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alora.data.formats import Row, read_text, shortened, without_nulls
from alora.errors import DataError, MissingDependency, one_line
from alora.findings import Findings

HUB = "hub:"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Of a data set on the hub (datasets knows some that read other files, too), and what its cache holds, for no network.
_FORMATS = ("json", "csv", "parquet", "arrow", "text", "cache")
Source = str | Sequence[str]  # a file or a data set, or several whose rows follow each other


def each(source: Source) -> list[str]:
    """The sources of a setting that names one or several."""
    return [source] if isinstance(source, str) else list(source)


def named(source: Source) -> str:
    """The sources of a setting as a message shows them."""
    return ", ".join(each(source))


def read_rows(source: str, findings: Findings) -> Iterator[Row]:
    """Every row of ``source``: a file, or ``hub:NAME``, ``hub:NAME:SPLIT``, ``hub:NAME:CONFIG:SPLIT``.

    A row that cannot be read goes to ``findings``, and reading goes on.

    Raises:
        DataError: the source as a whole cannot be read.
    """
    if source.startswith(HUB):
        return _read_hub(source, findings)
    path = Path(source)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}; check the path and its permissions") from error
    if is_folder:
        raise DataError(f"{path} is a folder; give the files in it, such as a .jsonl")
    if not is_there:
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device and no file, and rows are read more than once; save them first")
    suffix = Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()
    if path.suffix.lower() in PARQUET_SUFFIXES:
        from alora.data.parquet import read_parquet  # pyarrow, which clients of a server go without

        return read_parquet(path)
    if suffix in (*JSON_SUFFIXES, *TABLE_SUFFIXES):
        return read_text(path, path.name, suffix in TABLE_SUFFIXES, findings)
    known = ", ".join((*JSON_SUFFIXES, *TABLE_SUFFIXES, PARQUET_SUFFIXES[0]))
    raise DataError(f"{path}: the ending {suffix!r} is not known; give {known} (text also with .gz) or hub:NAME")


def _read_hub(source: str, findings: Findings) -> Iterator[Row]:
    parts = source.removeprefix(HUB).split(":")
    if len(parts) > 3 or not all(parts):
        raise DataError(f"{source!r}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    name, split = parts[0], parts[-1] if len(parts) > 1 else "train"
    data = _load_hub(name, parts[1] if len(parts) == 3 else None, split, source)
    if data.info.builder_name == "csv":
        findings.notes[f"words such as None and NA are empty cells of {source}, as datasets reads CSV"] = 1
    _leave_coded(data.info.features)  # those of data.features are copies
    classes = {column: feature.names for column, feature in data.features.items() if hasattr(feature, "names")}
    for number, value in enumerate(data, 1):
        for column, names in classes.items():  # a class number means nothing without its data set
            if isinstance(value.get(column), int) and 0 <= value[column] < len(names):
                value[column] = names[value[column]]
        yield Row(f"{name}:{split}:{number}", {column: without_nulls(cell) for column, cell in value.items()})


def _load_hub(name: str, config: str | None, split: str, source: str) -> Any:
    if Path(name).exists() or name.startswith((".", "~", "/")):
        raise DataError(
            f"{source}: hub: names a data set of the hub, and {name} is a path; give its files, such as "
            f"{Path(name) / 'train.jsonl'}. What save_to_disk wrote, to_parquet of datasets writes as a file"
        )
    try:
        import datasets  # slow to import, and clients of a server go without
        from datasets.utils.extract import Extractor
    except ImportError as error:
        raise MissingDependency(f"{source} needs the package datasets; pip install datasets") from error
    for archive in ("tar", "rar", "7z"):  # by content, whatever the name; a tar's hard link may lead to a user's file
        Extractor.extractors.pop(archive, None)
    try:
        builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config)
        _require_plain(builder, source)
        builder.download_and_prepare()
        data = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:  # the hub, its cache and its loaders raise a dozen kinds
        raise DataError(
            f"{source}: the data set cannot be loaded: {one_line(error)}; check name and network"
        ) from error
    if split not in data:
        raise DataError(f"{source}: there is no split {split!r}; it has {', '.join(map(str, data))}")
    return data[split]


def _require_plain(builder: Any, source: str) -> None:
    """DataError unless datasets would read plain rows, from the data set's own files, into its own cache."""
    from datasets.config import HF_DATASETS_CACHE

    if builder.repo_id is None:  # the name of a format, which reads the current folder by it
        raise DataError(f"{source} is a format, and no data set of the hub; write hub:OWNER/NAME")
    if builder.name not in _FORMATS:
        raise DataError(f"{source} is in the format {builder.name!r}; give one of {', '.join(_FORMATS)}")
    own = f"hf://datasets/{builder.repo_id}@"  # datasets itself takes x/../../hf: for it, and more with a `::` or a `?`
    for file in (file for part in (builder.config.data_files or {}).values() for file in part):
        if not file.startswith(own) or "::" in file or ".." in file.split("/"):
            raise DataError(
                f"{source} leads to {shortened(file)}, which is not a file of the data set; mend its README.md"
            )
    copy = Path(builder.cache_dir)  # below the version that the card names
    if ".." in copy.parts or not copy.is_relative_to(Path(HF_DATASETS_CACHE).expanduser()):
        raise DataError(f"{source}: its card names a version or configuration that leads to {copy}; mend its README.md")


def _leave_coded(feature: Any) -> None:
    """Pictures, sounds and films are neither loaded nor decoded: each may be anywhere."""
    if getattr(feature, "decode", False) and type(feature).__name__ != "Json":
        feature.decode = False
    inner = list(feature.values()) if isinstance(feature, dict) else feature if isinstance(feature, list) else []
    for part in [*inner, getattr(feature, "feature", None)]:
        if part is not None:
            _leave_coded(part)
