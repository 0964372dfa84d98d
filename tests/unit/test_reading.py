"""What is opened, and what is refused before it is."""

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from omegaconf._utils import get_yaml_loader

from alora.errors import BundleError, ConfigError
from alora.reading import LONGEST, read_json, read_typed, read_yaml, require_plain


@pytest.mark.parametrize("large", [False, True])
def test_a_record_of_more_than_16_mib_is_refused(tmp_path, large):
    file = tmp_path / "alora.json"
    file.write_bytes(b'{"text": "' + b"x" * (LONGEST - (0 if large else 12)) + b'"}')
    with pytest.raises(BundleError, match="longer than 16 MiB") if large else nullcontext():
        read_json(file, BundleError, "copy it again")


def filled(folder):
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("x")
    (folder / "sub" / "file").write_text("x")
    return folder


STRANGE = {
    "link": (lambda place: place.symlink_to("/etc/passwd"), "is a link"),
    "link to nothing": (lambda place: place.symlink_to("nowhere"), "is a link"),
    "link to a neighbour": (lambda place: place.symlink_to("file"), "is a link"),
    "hidden link": (lambda place: place.with_name(".hidden").symlink_to("/etc"), "is a link"),
    "link to a folder": (lambda place: place.symlink_to("/etc"), "is a link"),
}


@pytest.mark.parametrize("where", [".", "sub"])
@pytest.mark.parametrize("name", STRANGE)
def test_only_files_lie_in_what_came_from_elsewhere(name, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = filled(tmp_path / "folder")
    (tmp_path / "named").symlink_to(folder)
    for top in (folder, tmp_path / "named"):  # the user's own link is followed
        require_plain(top, BundleError)
    make, words = STRANGE[name]
    make(folder / where / "strange")
    require_plain(folder, BundleError, "file", "missing")  # looked at alone
    with pytest.raises(BundleError, match=words):
        require_plain(folder, BundleError)


def hub_cache(root):
    """As huggingface_hub lays it out."""
    blobs, snapshot = root / "models--x--y" / "blobs", root / "models--x--y" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "0123abcdef").write_text("x")
    (snapshot / "file").symlink_to("../../blobs/0123abcdef")
    return blobs, snapshot


def blobs_elsewhere(blobs):
    blobs.rename(blobs.with_name("moved"))
    blobs.symlink_to("moved")


@pytest.mark.parametrize(
    "change",
    [
        lambda blobs, link: ((blobs / "0123abcdef").unlink(), (blobs / "0123abcdef").symlink_to("/etc/passwd")),
        lambda blobs, link: (blobs / "0123abcdef").unlink(),
        lambda blobs, link: (link.unlink(), link.symlink_to("../../../../../etc/passwd")),
        lambda blobs, link: (link.unlink(), link.symlink_to("../../blobs/../secret")),
        lambda blobs, link: blobs_elsewhere(blobs),
        lambda blobs, link: link.parent.parent.rename(link.parent.parent.with_name("other")),
    ],
    ids=["a blob that is a link", "no blob", "elsewhere", "out of the blobs", "blobs elsewhere", "no snapshots"],
)
def test_links_of_the_hubs_cache_lead_to_its_blobs_and_nowhere_else(change, tmp_path):
    blobs, snapshot = hub_cache(tmp_path)
    require_plain(snapshot, BundleError)
    change(blobs, snapshot / "file")
    folder = snapshot if snapshot.exists() else snapshot.parent.with_name("other") / "abc"
    with pytest.raises(BundleError, match="is a link"):
        require_plain(folder, BundleError)


@dataclass(frozen=True)
class Versioned:
    version: int
    names: tuple[str, ...]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", r"cannot be read as JSON \(a list, not an object\)"),
        ("{}", "version is None, and this alora reads 1; install the one that wrote it, or write it again"),
        ('{"version": 2, "surprise": []}', "version is 2, and this alora reads 1"),
        ('{"version": 1}', r"is damaged \(names is missing\); write it again"),
        ('{"version": true, "names": []}', "is damaged"),
        ('{"version": 1, "names": ["a"], "more": 1}', r"is damaged \(more is unknown\)"),
    ],
)
def test_what_is_no_record_of_this_version_is_refused(text, said, tmp_path):
    file = tmp_path / "record.json"
    with pytest.raises(BundleError, match=r"record\.json cannot be read"):
        read_typed(Versioned, file, BundleError, "write it again", version=1)
    file.write_text('{"version": 1, "names": ["a"]}')
    assert read_typed(Versioned, file, BundleError, "write it again", version=1) == Versioned(1, ("a",))
    file.write_text(text)
    with pytest.raises(BundleError, match=said):
        read_typed(Versioned, file, BundleError, "write it again", version=1)


ODD_YAML = {
    "a path": ("x: !!python/object/apply:pathlib.PosixPath [/etc]", "PosixPath|could not determine a constructor"),
    "a path as a key": ("? !!python/object/apply:pathlib.PosixPath [/etc]\n: 1", "PosixPath|could not determine"),
    "pairs": ("x: !!omap [{a: '${oc.env:X}'}]", "is read as tuple; write it without a tag"),
    "pairs in a list": ("[1, [!!pairs [{a: b}]]]", "is read as tuple"),
    "a set": ("x: !!set {a, b}", "is read as set"),
    "bytes": ("x: !!binary aGVsbG8=", "is read as bytes"),
    "a date by its tag": ("x: !!timestamp 2026-01-02", "is read as date"),
}


@pytest.mark.parametrize("loader", [None, get_yaml_loader()], ids=["plain", "OmegaConf's"])
@pytest.mark.parametrize("name", ODD_YAML)
def test_yaml_gives_jsons_types_alone(name, loader, tmp_path):
    text, words = ODD_YAML[name]
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_yaml(tmp_path / "a.yaml", ConfigError, "mend it", loader)
    (tmp_path / "a.yaml").write_text("{day: 2026-01-02, n: [1, 2.5, true, null, {a: b}]}")
    assert read_yaml(tmp_path / "a.yaml", ConfigError, "mend it", loader) == {
        "day": "2026-01-02",
        "n": [1, 2.5, True, None, {"a": "b"}],
    }
