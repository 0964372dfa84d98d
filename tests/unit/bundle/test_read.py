"""Golden rows of several bundles, asked in one pass."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from alora.bundle import read
from alora.bundle.golden import GoldenRow
from alora.bundle.light import Bundle
from alora.bundle.read import check_bases, check_bundles
from alora.errors import CheckFailed
from alora.prompt.parts import Prefix
from tests.unit.bundle.cases import BASE as RECORD
from tests.unit.bundle.cases import manifest, with_weights

BASE = SimpleNamespace(dtype="float32")


class Echo:
    """A scorer whose adapters are their own answers."""

    def __init__(self, base, adapters):
        self.adapters = adapters

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def score_rows(self, questions):
        return [[torch.tensor(self.adapters[place]) for place in question.asked] for question in questions]


@pytest.fixture(autouse=True)
def stubs(monkeypatch):
    monkeypatch.setattr(read, "Scorer", Echo)
    monkeypatch.setattr(Bundle, "check_base", lambda self, base: None)
    renderer = SimpleNamespace(prefix=lambda conversation: Prefix((1, 2)))
    monkeypatch.setattr(Bundle, "renderer", lambda self, base: renderer)


def bundle(tmp_path, name: str, stored: tuple[float, ...], answers: tuple[float, ...], rows=3, dtype="float32"):
    golden = tuple(GoldenRow(str(n), (), "", stored) for n in range(rows))
    made = manifest(name, base=replace(RECORD, dtype=dtype))
    return with_weights(Bundle(tmp_path / name, made, golden), answers)


def test_each_bundle_is_held_against_its_own_adapter_also_behind_one_without_rows(tmp_path):
    bare = bundle(tmp_path, "bare", (), (9.0, -9.0), rows=0)
    others = [bundle(tmp_path, "a", (0.0, 1.0), (0.0, 1.0)), bundle(tmp_path, "b", (3.0, 0.0), (3.0, 0.0), rows=1)]
    check_bundles([bare, *others], BASE, rows=2)  # pyright: ignore[reportArgumentType]
    check_bundles([bare], BASE)  # pyright: ignore[reportArgumentType]


def test_every_bundle_at_fault_is_named_and_no_other(tmp_path):
    bundles = [
        bundle(tmp_path, "a", (0.0, 1.0), (1.0, 0.0)),
        bundle(tmp_path, "b", (3.0, 0.0), (3.0, 0.0)),
        bundle(tmp_path, "c", (0.0, 2.0), (0.0, float("nan"))),
    ]
    with pytest.raises(CheckFailed, match=r"tolerance 0\.001") as caught:
        check_bundles(bundles, BASE, rows=None)  # pyright: ignore[reportArgumentType]
    assert [str(one.folder) in str(caught.value) for one in bundles] == [True, False, True]


def test_every_bundle_is_checked_for_its_base_also_one_without_rows(tmp_path, monkeypatch):
    bundles, asked = [bundle(tmp_path, name, (0.0, 1.0), (0.0, 1.0), rows) for name, rows in (("a", 1), ("b", 0))], []
    monkeypatch.setattr(Bundle, "check_base", lambda self, base: asked.append((self, base)))
    check_bundles(bundles, BASE)  # pyright: ignore[reportArgumentType]
    assert asked == [(one, BASE) for one in bundles]


def test_each_bundle_has_the_tolerance_of_its_own_dtype(tmp_path):
    stored, near = (0.0, 1.0), (0.0, 1.1)
    coarse = bundle(tmp_path, "coarse", stored, near, dtype="bfloat16")
    check_bundles([coarse], BASE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckFailed, match=r"fine: .*tolerance 0\.001"):
        check_bundles([coarse, bundle(tmp_path, "fine", stored, near)], BASE)  # pyright: ignore[reportArgumentType]


def test_a_threshold_of_another_precision_is_noted_and_no_other(tmp_path, capsys):
    bundles = [bundle(tmp_path, name, (), (), 0, dtype) for name, dtype in (("a", "bfloat16"), ("b", "float32"))]
    check_bases(bundles, BASE)  # pyright: ignore[reportArgumentType]
    said = capsys.readouterr().err
    assert "a: its threshold was fitted in bfloat16, the base runs in float32" in said
    assert "b: " not in said
