"""Policies that fail are left out, until none is left."""

import pytest

from alora.errors import AllFailed, CheckFailed, DataError, LeftOut


def failing(errors):
    def stage(name):
        if name in errors:
            raise errors[name]
        return name.upper()

    return stage


def test_who_fails_is_left_out_and_the_others_go_on():
    left_out, error = LeftOut(), DataError("no rows")
    assert left_out.each(["a", "b"], failing({"a": error})) == {"b": "B"}
    assert left_out == {"a": error}
    left_out.require_some(["a", "b"])
    with pytest.raises(ZeroDivisionError):  # a fault of our own
        left_out.each(["a", "b"], failing({"a": ZeroDivisionError()}))


def test_the_only_one_fails_as_it_does():
    error = CheckFailed("no")
    with pytest.raises(CheckFailed) as raised:
        LeftOut({"a": error, "of another stage": DataError("x")}).require_some(["a"])
    assert raised.value is error


@pytest.mark.parametrize(("other", "code"), [(CheckFailed("never"), 1), (DataError("no rows"), 2)])
def test_when_all_fail_each_is_named_and_what_can_be_mended_counts(other, code):
    with pytest.raises(AllFailed, match=r"none of 2 policies is left:\n  a: no\n  b: ") as raised:
        LeftOut({"a": CheckFailed("no"), "b": other}).require_some(["a", "b"])
    assert raised.value.exit_code == code
