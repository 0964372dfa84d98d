"""How far two measurements of golden rows are apart."""

import math

import pytest

from alora.bundle.golden import (
    GoldenRow,
    disagreement,
    largest_difference,
    prefix_digest,
    read_golden,
    tolerance,
    write_golden,
)
from alora.data.messages import Message
from alora.errors import BundleError
from alora.prompt.parts import Prefix


def rows(*logits: tuple[float, ...]) -> list[GoldenRow]:
    return [GoldenRow(str(number), (), "0" * 64, row) for number, row in enumerate(logits)]


def test_differences_are_absolute_up_to_one_and_relative_above():
    assert largest_difference(rows((0.001, 0.5)), rows((0.002, 0.5))) == pytest.approx(0.001)
    assert largest_difference(rows((100.0, 0.5)), rows((101.0, 0.5))) == pytest.approx(0.01)
    assert largest_difference(rows((0.0, 0.0), (0.0, 1.0)), rows((0.0, math.nan), (0.0, 3.0))) == math.inf


@pytest.mark.parametrize("shift", [0.0, -3.0, 2000.0])
def test_answers_that_are_known_up_to_a_constant_agree(shift):
    assert disagreement(rows((1.0, 3.0)), [(1.0 + shift, 3.0 + shift)]) == pytest.approx(0.0, abs=1e-9)
    assert disagreement(rows((1.0, 3.0)), [(3.0 + shift, 1.0 + shift)]) > 0.5


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")])
def test_the_coarser_dtype_sets_the_tolerance(dtypes):
    assert tolerance(*dtypes) == 0.25


def test_a_row_that_is_none_is_named_by_its_line(tmp_path):
    file = tmp_path / "golden.jsonl"
    file.write_text('{"id": "a", "messages": [], "prefix_sha256": "", "label_logits": [0.0, 1.0]}\n{}\n')
    with pytest.raises(BundleError, match=r"golden\.jsonl:2: not a golden row"):
        read_golden(file)


def test_a_row_comes_back_as_it_was_who_speaks_included(tmp_path):
    messages = (Message("user", "5 €?\n"), Message("tool", "5", name="price"))
    row = GoldenRow("a", messages, "0" * 64, (0.1, -1e-7))
    write_golden(tmp_path / "golden.jsonl", [row, row])
    assert read_golden(tmp_path / "golden.jsonl") == (row, row)


def test_the_order_of_a_prefixs_tokens_is_in_its_digest():
    assert prefix_digest(Prefix((1, 2, 3))) != prefix_digest(Prefix((1, 3, 2)))
