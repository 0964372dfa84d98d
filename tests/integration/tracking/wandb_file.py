"""Read back what wandb recorded offline: its file is a LevelDB log (32 KiB blocks) of protobuf records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK, _HEAD = 32768, 7


def records(file: Path) -> Iterator[Record]:
    """Every record of a ``.wandb`` file; a cut one at the end, where a process was killed, is left out."""
    content, place, pending = file.read_bytes(), _HEAD, b""  # behind the file's own header
    while place + _HEAD <= len(content):
        if _BLOCK - place % _BLOCK < _HEAD:
            place += _BLOCK - place % _BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        pending += content[place + _HEAD : place + _HEAD + length]
        place += _HEAD + length
        if kind in (1, 4) and place <= len(content):  # whole, or last part
            yield Record.FromString(pending)
            pending = b""


class OfflineRun:
    """One ``offline-run-*`` folder."""

    def __init__(self, folder: Path) -> None:
        (file,) = folder.glob("run-*.wandb")
        self.ids: set[str] = set()
        self.config: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        for record in records(file):
            if record.HasField("run"):
                self.ids.add(record.run.run_id)
            if record.HasField("config"):
                for item in record.config.update:
                    self.config[item.key] = json.loads(item.value_json)
            if record.HasField("history"):
                self.history.append(
                    {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                )
