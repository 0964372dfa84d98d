"""Damage by rule: every file of a bundle cut and flipped, every key of every JSON with a value of another type."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alora.adapter.folder import CONFIG_FILE, WEIGHTS_FILE
from alora.bundle.manifest import CERTIFICATE_FILE, GOLDEN_FILE, MANIFEST_FILE
from alora.received import file_record
from alora.text import content_digest
from tests.integration.bad_input.conftest import Case, Damage, cut

FILES = (MANIFEST_FILE, CONFIG_FILE, WEIGHTS_FILE, CERTIFICATE_FILE, GOLDEN_FILE)
SCORE = "score {place}/talk.json base.source={place}/base artifact={here}/bundle"
PARTS = 2


def flipped(file: str, share: float) -> Damage:
    """One bit at ``share`` of a file is another one."""

    def damage(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        place = int(share * len(content))
        content[place] ^= 1 << place % 8
        (folder / file).write_bytes(content)

    return damage


def of_bundle(file: str, damage: Damage) -> Case:
    return Case(SCORE, [file], copied="run/bundle", damage=damage)


CASES = {
    f"cut: {file} at {part}/{PARTS}": of_bundle(file, cut(file, part / PARTS))
    for file in FILES
    for part in range(PARTS)
}
CASES |= {f"flipped bit: {file}": of_bundle(file, flipped(file, 0.5)) for file in FILES}

Step = str | int


def keys(content: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The path of every value in a JSON document; of a list, or an object of like objects, only into the first."""
    if path:
        yield path
    items: list[tuple[Step, Any]] = []
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))[:1]
    alike = {tuple(value) if isinstance(value, dict) else None for _, value in items}
    if path and len(items) > 1 and len(alike) == 1 and None not in alike:
        items = items[:1]
    for name, value in items:
        yield from keys(value, (*path, name))


def swap(content: Any, path: tuple[Step, ...]) -> None:
    """Put a value of another type at ``path``."""
    for step in path[:-1]:
        content = content[step]
    content[path[-1]] = another_type(content[path[-1]])


def another_type(value: Any) -> Any:
    if isinstance(value, bool):
        return "true"
    if isinstance(value, str):
        return 7
    if isinstance(value, int | float):
        return [str(value)]
    if isinstance(value, list):
        return {"0": value}
    return "nothing" if isinstance(value, dict) else [7]  # for null


def sign(folder: Path, changed: str) -> None:
    """Make the digests of a bundle agree again, as whoever changes a file on purpose does."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    if changed != MANIFEST_FILE:
        record = file_record(folder / changed)
        manifest["files"][changed] = {"size": record.size, "sha256": record.sha256}
    manifest["sha256"] = content_digest(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2))
