"""Every key of a bundle's records with a value of another type, its digests made right again: refused by its name."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alora.bundle.manifest import CERTIFICATE_FILE, GOLDEN_FILE, MANIFEST_FILE
from alora.bundle.read import load_bundle
from alora.errors import AloraError
from alora.received import file_record
from alora.text import content_digest

BUNDLE = Path(__file__).parents[2] / "fixtures/received/bundle"
Step = str | int


def keys(content: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The path of every value in a JSON document; of a list only into the first."""
    if path:
        yield path
    items: list[tuple[Step, Any]] = list(content.items()) if isinstance(content, dict) else []
    if isinstance(content, list):
        items = list(enumerate(content))[:1]
    for name, value in items:
        yield from keys(value, (*path, name))


def swap(content: Any, path: tuple[Step, ...]) -> None:
    """Put a value of another type at ``path``."""
    for step in path[:-1]:
        content = content[step]
    was = content[path[-1]]
    content[path[-1]] = 7 if isinstance(was, str) else {"0": was} if isinstance(was, list) else ["nothing"]


def sign(folder: Path, changed: str) -> None:
    """Make the digests of a bundle agree again, as whoever changes a file on purpose does."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    if changed != MANIFEST_FILE:
        record = file_record(folder / changed)
        manifest["files"][changed] = {"size": record.size, "sha256": record.sha256}
        if changed == CERTIFICATE_FILE:
            manifest["certificate"]["sha256"] = record.sha256
    manifest["sha256"] = content_digest(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.mark.parametrize("file", [MANIFEST_FILE, CERTIFICATE_FILE, GOLDEN_FILE])
def test_a_swapped_key_is_named(file, tmp_path):
    folder = shutil.copytree(BUNDLE, tmp_path / "bundle")
    first, end = json.JSONDecoder().raw_decode((BUNDLE / file).read_text())
    unnamed = []
    for path in keys(first):
        content = json.loads(json.dumps(first))
        swap(content, path)
        shutil.copytree(BUNDLE, folder, dirs_exist_ok=True)
        (folder / file).write_text(json.dumps(content) + (BUNDLE / file).read_text()[end:])
        if path != ("sha256",):
            sign(folder, file)
        with pytest.raises(AloraError, match=re.escape(file)) as refused:
            load_bundle(folder)
        names = [step for step in path if isinstance(step, str)]
        if names[-1] not in str(refused.value):
            unnamed.append(path)
    assert [path for path in unnamed if path[:2] != ("policy", "labels")] == []
