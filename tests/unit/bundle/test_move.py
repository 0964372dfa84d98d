"""What a bundle keeps when it is written again for another base."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.bundle import move
from alora.bundle.golden import GoldenRow
from alora.bundle.manifest import CardRecord
from alora.bundle.move import _same_file
from alora.bundle.read import Bundle
from alora.config.schema import IdentitySettings
from alora.errors import BundleError
from alora.verdict import OperatingPoint
from tests.unit.bundle.cases import BASE, evaluation, manifest, with_weights

POINT = OperatingPoint(threshold=0.7)
ROW = GoldenRow("1", (), "0" * 64, (0.0, 1.0))


def bundle_of(tmp_path, **changes) -> Bundle:
    return with_weights(Bundle(tmp_path, manifest(**changes), (ROW,) * 3), None)


def base_of(fingerprint=BASE.fingerprint) -> LoadedBase:
    model = SimpleNamespace(dtype="torch.float32")
    return LoadedBase(model, None, fingerprint, "/home/user/models/qwen3")  # pyright: ignore[reportArgumentType]


def rewritten(bundle, monkeypatch):
    seen = []
    monkeypatch.setattr(move, "write_bundle", lambda *given: seen.append(given))
    move.rewrite_bundle(bundle, bundle.folder, base=base_of(), certificate=None, operating_point=POINT, moved=None,
                        validation={"ok": 9})  # fmt: skip
    return seen[0]


def test_only_the_point_and_its_rows_are_new(tmp_path, monkeypatch):
    old = {
        "base": replace(BASE, revision="v1"),
        "data": {"train": {"ok": 4}, "validation": {"ok": 2}},
        "evaluations": (evaluation(),),
        "card": CardRecord(license="mit", training={"rank": "4"}),
        "template_kwargs": {"enable_thinking": False},
    }
    bundle = bundle_of(tmp_path, **old)
    contents, _, golden_rows = rewritten(bundle, monkeypatch)
    assert contents.operating_point == POINT
    assert contents.data == {"train": {"ok": 4}, "validation": {"ok": 9}}
    assert (contents.revision, contents.evaluations, contents.card) == ("v1", old["evaluations"], old["card"])
    assert contents.template_kwargs == {"enable_thinking": False}
    assert golden_rows == 3


@pytest.mark.parametrize(("local", "source"), [(False, "toys/qwen3"), (True, "/home/user/models/qwen3")])
def test_a_base_of_the_hub_keeps_its_public_name_wherever_it_lies_here(local, source, tmp_path, monkeypatch):
    contents, *_ = rewritten(bundle_of(tmp_path, base=replace(BASE, local=local)), monkeypatch)
    assert contents.base.source == source


def test_another_base_is_not_certified_for_it(tmp_path):
    with pytest.raises(BundleError):
        move.recertify(
            bundle_of(tmp_path, activated=False), base_of(Fingerprint("other", "t", "c")), IdentitySettings()
        )
    mixed = Fingerprint("other", "t", "c", quantization="nf4")
    assert not move.is_move(bundle_of(tmp_path), base_of(mixed)), "not by its quantization alone"


def test_of_a_link_the_file_itself_is_taken(tmp_path):
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "folder").mkdir()
    link, staged = tmp_path / "folder/adapter", tmp_path / "staged"
    link.symlink_to("../blob")
    _same_file(link, staged)
    assert not staged.is_symlink()
    assert staged.read_text() == "weights"
    assert staged.stat().st_ino == (tmp_path / "blob").stat().st_ino
