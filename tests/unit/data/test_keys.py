"""Which values hold a text that would be lost."""

import datetime

import pytest

from alora.data.keys import unread

DEEP: list = []
for _ in range(10_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", ["b", b"b", ["", "b"], {"a": {"b": "c"}}, {"amount": 500}, ({"a": False},)])
def test_a_text_or_what_has_parts(value):
    assert unread({"x": value, "y": "read", "id": "known"}, "y") == ["x"]


@pytest.mark.parametrize("value", [None, "", " ", 0, 1.5, True, [], {}, {"a": None}, [[""]], DEEP, datetime.date.min])
def test_a_number_or_nothing(value):
    assert unread({"x": value}) == []
