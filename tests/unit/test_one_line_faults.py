"""The table of planted faults fits the code; `python -m scripts.plant_faults` plants them."""

import ast

import pytest

from scripts.one_line_faults import FAULTS, TESTS, Fault
from scripts.plant_faults import ROOT, planted

ALL = [fault for faults in FAULTS.values() for fault in faults]


def test_every_fault_can_be_planted_and_leaves_python():
    for fault in ALL:
        ast.parse(planted(fault, ROOT / "alora"))
    assert len(ALL) >= 60


def test_a_fault_whose_line_is_gone_is_found(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for text in ("x = 1", "y"):
        with pytest.raises(ValueError, match=r"a.py"):
            planted(Fault("a.py", text, "x = 2"), tmp_path)


def test_every_room_has_tests():
    assert TESTS.keys() == FAULTS.keys()
    assert [part for parts in TESTS.values() for part in parts if not (ROOT / part).exists()] == []
