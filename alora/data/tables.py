"""Tables within an object: rows below a key, below the names of splits, or column by column."""

from typing import Any

TABLES = ("data", "rows", "examples", "items", "records", "instances", "dataset")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval"), "validation"),
    "test": "test",
}


def unwrapped(content: Any) -> list[tuple[str, list[Any]]]:
    """The rows below ``data`` or the names of splits, or of a table by columns; nothing for a row."""
    if not isinstance(content, dict):
        return []
    lists = {key: value for key, value in content.items() if isinstance(value, list) and value}
    below = {key: value for key, value in lists.items() if key in (*TABLES, *SPLITS) and not is_turns(value)}
    if below:
        return [
            (f"the rows are read from {key!r} of the file",
             [_of_list(row) | ({"split": key} if key in SPLITS and len(below) > 1 else {}) for row in rows])
            for key, rows in below.items()
        ]  # fmt: skip
    columns = lists or {
        key: [*value.values()]
        for key, value in content.items()
        if isinstance(value, dict) and value and all(name.isdigit() for name in value)
    }
    if len(columns) < 2 or len(columns) < len(content) or len({*map(len, columns.values())}) > 1:
        return []
    if any(is_turns(value) for value in columns.values()):
        return []
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [("the file is a table by columns", rows)]


def is_turns(items: list[Any]) -> bool:
    """Whether a list is of messages, and not of rows."""
    return any(isinstance(item, dict) and {"role", "from", "type"} & item.keys() for item in items[:1])


def _of_list(row: Any) -> dict[str, Any]:
    """A row as an object: a list of two is a text and its label."""
    if isinstance(row, list) and len(row) == 2:
        return {"text": row[0], "label": row[1]}
    return row if isinstance(row, dict) else {"row": row}
