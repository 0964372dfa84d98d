import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pytest

from alora.typed import typed


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
    texts: Sequence[str] = ()


WHOLE = Whole(
    3,
    True,
    (Part("a", 0.5), Part("b")),
    ("x", 1),
    {"c": Part("c", 2.0)},
    None,
    [Part("d")],
    {"turn": 1, "stage": "read"},
    ("e", "f"),
)


def plain() -> dict:
    return json.loads(json.dumps(asdict(WHOLE)))


def test_what_was_written_reads_back():
    assert typed(Whole, plain()) == WHOLE
    assert typed(Whole, plain() | {"inner": plain()}).inner == WHOLE
    assert typed(float, 3) == 3.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": True}, "count is True, which is not a whole number"),
        ({"count": 3.0}, "count is 3.0, which is not a whole number"),
        ({"count": "3"}, "count is '3', which is not a whole number"),
        ({"count": None}, "count is None"),
        ({"sound": 1}, "sound is 1, which is not true or false"),
        ({"parts": {"a": 1}}, "parts is {'a': 1}, which is not a list"),
        ({"parts": [{"name": 7}]}, r"parts\[0\]\.name is 7, which is not text"),
        ({"parts": [{"name": "a", "share": float("nan")}]}, r"parts\[0\]\.share is nan, which is not a finite number"),
        ({"parts": [{"name": "a", "share": 10**400}]}, r"parts\[0\]\.share is 1000"),
        ({"parts": [{"share": 1}]}, r"parts\[0\]\.name is missing"),
        ({"pair": ["x", 1, 2]}, "pair is .*, which is not a list of its length"),
        ({"pair": ["x", "y"]}, r"pair\[1\] is 'y'"),
        ({"by_name": []}, "by_name is .*, which is not an object"),
        ({"by_name": {"c": 3}}, r"by_name\.c is 3, which is not an object"),
        ({"inner": {"count": 1}}, r"inner\.sound is missing, inner\.parts is missing, inner\.pair is missing"),
        ({"listed": [{"name": 7}]}, r"listed\[0\]\.name is 7, which is not text"),
        ({"listed": "d"}, "listed is 'd', which is not a list"),
        ({"at": {"turn": 1.5}}, r"at\.turn is 1.5, which is not a whole number"),
        ({"at": ["turn"]}, "at is .*, which is not an object"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"count": "x" * 10_000}, "^count is 'x{59}, which"),
    ],
)
def test_what_is_of_another_type_is_named(change, words):
    with pytest.raises(TypeError, match=words):
        typed(Whole, plain() | change)
