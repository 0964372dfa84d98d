"""Where rows come from: text files, Parquet files, hub data sets. Each row is plain data, with where it stands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from alora.data.formats import Row, read_text, shortened, without_nulls
from alora.errors import DataError, MissingDependency, one_line
from alora.findings import Findings
from alora.reading import read_whole, require_plain

HUB = "hub:"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
_FORMATS = ("json", "csv", "parquet", "arrow", "text")  # of a data set; datasets knows some that read other files, too
Source = str | Sequence[str]  # a file or a data set, or several whose rows follow each other


def each(source: Source) -> list[str]:
    """The sources of a setting that names one or several."""
    return [source] if isinstance(source, str) else list(source)


def named(source: Source) -> str:
    """The sources of a setting as a message shows them."""
    return ", ".join(each(source))


def read_rows(source: str, findings: Findings) -> Iterator[Row]:
    """Every row of ``source``: a path, or ``hub:NAME``, ``hub:NAME:SPLIT``, ``hub:NAME:CONFIG:SPLIT``.

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
        raise DataError(f"{path} is a folder; give a file in it, such as a .jsonl, or hub:{path} for a data set")
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
    try:
        import datasets  # slow to import, and clients of a server go without
        from datasets.utils.extract import Extractor
    except ImportError as error:
        raise MissingDependency(f"{source} needs the package datasets; pip install datasets") from error
    for archive in ("tar", "rar", "7z"):  # by content, whatever the name; a tar's hard link may lead to a user's file
        Extractor.extractors.pop(archive, None)
    home = Path(name)
    require_plain(home, DataError)
    try:
        if any((home / file).is_file() for file in ("dataset_info.json", "dataset_dict.json")):  # by save_to_disk
            data = datasets.load_from_disk(name)
            parts = data.values() if isinstance(data, datasets.DatasetDict) else [data]
            _require_own([file["filename"] for part in parts for file in part.cache_files], name)
        else:
            _require_plain_card(home)
            # By its path: datasets has formats named `json` or `pandas`, which read the current folder, pickles too.
            builder = datasets.load_dataset_builder(str(home.absolute()) if home.exists() else name, config)
            if builder.name not in _FORMATS:
                raise DataError(f"{source} is in the format {builder.name!r}; give one of {', '.join(_FORMATS)}")
            _require_own([file for part in (builder.config.data_files or {}).values() for file in part], name)
            builder.download_and_prepare()
            data = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:  # the hub, its cache and its loaders raise a dozen kinds
        raise DataError(
            f"{source}: the data set cannot be loaded: {one_line(error)}; check name and network"
        ) from error
    if isinstance(data, datasets.Dataset):
        return data
    if split not in data:
        raise DataError(f"{source}: there is no split {split!r}; it has {', '.join(map(str, data))}")
    return data[split]


def _leave_coded(feature: Any) -> None:
    """Pictures, sounds and films are neither loaded nor decoded: each may be anywhere."""
    if getattr(feature, "decode", False) and type(feature).__name__ != "Json":
        feature.decode = False
    inner = list(feature.values()) if isinstance(feature, dict) else feature if isinstance(feature, list) else []
    for part in [*inner, getattr(feature, "feature", None)]:
        if part is not None:
            _leave_coded(part)


def _require_plain_card(home: Path) -> None:
    """DataError where a folder's card names more than plain paths below it: as files, which its loader opens whatever
    the address, or as the ``version``, below which datasets keeps its copy."""
    from huggingface_hub import DatasetCard  # there where datasets is, which reads cards by it

    for file in (home / "README.md", home / ".huggingface.yaml"):
        if not file.is_file():
            continue
        require_plain(home, DataError, file.name)
        content = DatasetCard.load(file).data.to_dict() if file.suffix == ".md" else yaml.safe_load(read_whole(file))
        configs = content.get("configs") if isinstance(content, dict) else None
        waiting = [
            item.get(key)
            for item in configs or ()
            if isinstance(item, dict)
            for key in ("data_files", "data_dir", "version")
        ]
        seen = set[int]()  # an alias may stand anywhere, and in itself
        while waiting:
            value = waiting.pop()
            if isinstance(value, str) and (":" in value or ".." in Path(value).parts or Path(value).is_absolute()):
                raise DataError(f"{file} leads to {shortened(value)}, which is not a file of the data set; mend it")
            if isinstance(value, dict | list) and id(value) not in seen:
                seen.add(id(value))
                waiting += value.values() if isinstance(value, dict) else value


def _require_own(files: Sequence[str], name: str) -> None:
    """DataError where a data set refers to files outside it (``data_files`` in its README.md, or its state.json), or a
    folder's file is packed: datasets unpacks it whole, into a copy that it knows by the file's path alone."""
    from datasets.utils.extract import Extractor

    home = Path(name)
    is_folder = home.exists()
    for file in files:
        parent = Path(file).parent
        own = parent.resolve().is_relative_to(home.resolve()) if is_folder else file.startswith("hf://")
        if not own or (is_folder and "::" in file):  # fsspec opens what stands behind it
            raise DataError(
                f"{name} leads to {file}, which is not a file of the data set; mend its README.md or state.json"
            )
        if is_folder:
            require_plain(parent, DataError, Path(file).name)  # it may lie in a hidden folder
            if packed := Extractor.infer_extractor_format(file):
                raise DataError(f"{file} is packed ({packed}); unpack it, or give a .gz itself in place of hub:{name}")
