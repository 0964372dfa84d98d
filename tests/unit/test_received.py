"""What somebody sent: which folders are refused, and that a record is of its types."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pytest

from alora import received
from alora.errors import BundleError
from alora.received import CHANGED, DAMAGED, NEWER, NOT_OURS, Folder, decode, file_record, read_record

REMEDY = "write it again"


@dataclass(frozen=True)
class Part:
    name: str
    share: float | None = None


@dataclass(frozen=True)
class Whole:
    count: int
    sound: bool
    parts: tuple[Part, ...]
    pair: tuple[str, int]
    by_name: Mapping[str, Part] = field(default_factory=dict)
    inner: "Whole | None" = None
    listed: list[Part] = field(default_factory=list)
    at: dict[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("a count is positive")


WHOLE = Whole(
    3, True, (Part("a", 0.5), Part("b")), ("x", 1), {"c": Part("c", 2.0)}, None, [Part("d")], {"turn": 1, "stage": "x"}
)


def plain() -> dict:
    return json.loads(json.dumps(asdict(WHOLE)))


def test_what_was_written_reads_back():
    assert decode(Whole, plain()) == WHOLE
    assert decode(Whole, plain() | {"inner": plain()}).inner == WHOLE
    assert type(decode(float, 3)) is float


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"count": True}, "count"),
        ({"count": -1}, "a count is positive"),
        ({"count": "x" * 10_000}, "count"),
        ({"parts": [{"name": "a", "share": float("nan")}]}, r"parts\[0\]\.share"),
        ({"parts": [{"name": "a", "share": 10**400}]}, r"parts\[0\]\.share"),
        ({"pair": ["x", "y"]}, r"pair\[1\]"),
        ({"inner": {"count": 1}}, r"inner\.sound is missing; inner\.parts is missing; inner\.pair is missing"),
        ({"surprise": 1}, "surprise is unknown"),
    ],
)
def test_what_is_of_another_type_is_named(change, keys):
    with pytest.raises(TypeError, match=f"^{keys}") as caught:
        decode(Whole, plain() | change)
    assert len(str(caught.value)) < 300


@dataclass(frozen=True)
class Versioned:
    version: int
    names: tuple[str, ...]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{}", NOT_OURS),
        ('{"version": 2, "surprise": []}', NEWER),
        ('{"version": true, "names": []}', NOT_OURS),
        ('{"version": 1}', DAMAGED),
        ('{"version": 1, "names": ["a"], "more": 1}', DAMAGED),
    ],
)
def test_what_is_no_record_of_this_version_is_refused(text, code, tmp_path):
    file = tmp_path / "record.json"
    with pytest.raises(BundleError, match=r"record\.json cannot be read"):
        read_record(Versioned, file, BundleError, REMEDY, version=1)
    file.write_text('{"version": 1, "names": ["a"]}')
    assert read_record(Versioned, file, BundleError, REMEDY, version=1) == Versioned(1, ("a",))
    file.write_text(text)
    with pytest.raises(BundleError, match=r"record\.json") as caught:
        read_record(Versioned, file, BundleError, REMEDY, version=1)
    assert caught.value.code == code


def test_a_process_reads_a_file_once_until_it_changes(tmp_path, monkeypatch):
    read, sha256_of = [], received.sha256_of
    monkeypatch.setattr(received, "sha256_of", lambda file: read.append(file) or sha256_of(file))
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    first = file_record(file)
    assert file_record(file) == first
    assert len(read) == 2  # written to just now, it may change again within the clock's step
    monkeypatch.setattr(received, "_SETTLED_NS", -(10**18))
    assert [file_record(file), file_record(file)] == [first, first]
    assert len(read) == 3
    state = file.stat()
    file.write_bytes(b"Weights")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert file_record(file) != first


def filled(folder):
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("x")
    (folder / "sub" / "file").write_text("x")
    return folder


@pytest.mark.parametrize("where", [".", "sub"])
@pytest.mark.parametrize(
    ("name", "target"),
    [("strange", "/etc/passwd"), ("strange", "nowhere"), ("strange", "file"), (".hidden", "/etc"), ("strange", "/etc")],
)
def test_only_files_lie_in_what_came_from_elsewhere(name, target, where, tmp_path):
    folder = filled(tmp_path / "folder")
    (tmp_path / "named").symlink_to(folder)
    for top in (folder, tmp_path / "named"):  # the user's own link is followed
        assert Folder(top, BundleError, REMEDY).files == {"file", "sub/file"}
    (folder / where / name).symlink_to(target)
    assert Folder(folder, BundleError, REMEDY, "file", "missing").files == {"file"}  # looked at alone
    with pytest.raises(BundleError) as caught:
        Folder(folder, BundleError, REMEDY)
    assert caught.value.code == CHANGED


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
        lambda blobs, link: blobs_elsewhere(blobs),
    ],
    ids=["a blob that is a link", "no blob", "elsewhere", "blobs elsewhere"],
)
def test_links_of_the_hubs_cache_lead_to_its_blobs_and_nowhere_else(change, tmp_path):
    blobs, snapshot = hub_cache(tmp_path)
    assert Folder(snapshot, BundleError, REMEDY).files == {"file"}
    change(blobs, snapshot / "file")
    with pytest.raises(BundleError):
        Folder(snapshot, BundleError, REMEDY)
