"""Which findings catch a planted fault."""

import pytest

from alora.identity import controls
from alora.identity.capture import make_call
from alora.identity.controls import Control, plant
from alora.identity.equality import ACTIVATION, PREFIX, KVFinding

CALL = make_call("pair", [[1, 2, 3]], [1], pad_id=0, device="cpu")
FOUND = KVFinding(PREFIX, "pair", "layer 0 K", 0, 0, 4)


@pytest.mark.parametrize(
    ("kinds", "caught"), [((PREFIX,), True), ((ACTIVATION,), False), ((ACTIVATION, PREFIX), True)], ids=str
)
def test_a_finding_of_another_kind_catches_nothing(kinds, caught, monkeypatch):
    monkeypatch.setattr(controls, "compare", lambda *_: [FOUND])
    control = Control("fault", kinds, lambda models, call: None)  # pyright: ignore[reportArgumentType]
    record = plant(control, None, [CALL], {"pair": None}, ())  # pyright: ignore[reportArgumentType]
    assert (record.name, record.caught) == ("fault", caught)
    assert record.first_difference == (f"{PREFIX} check, {FOUND}" if caught else "none")
