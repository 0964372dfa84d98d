"""What the plugin asks of vLLM's objects, on objects of the same shape."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from alora.vllm_plugin import compat


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (lambda first, second: None, True),
        (lambda first, second, more=0: None, True),
        (lambda second, first: None, False),
        (lambda first, more, second: None, False),
        (lambda first: None, False),
        ("no function", False),
    ],
    ids=["as known", "longer", "swapped", "between", "shorter", "none"],
)
def test_a_symbol_has_its_parameters_in_their_order(function, known, monkeypatch):
    module = ModuleType("a_module_of_vllms")
    module.called = function  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    symbol = compat.Symbol(module.__name__, "", "called", ("first", "second"))
    if known:
        assert compat.current(symbol) is function
    else:
        with pytest.raises(compat.Incompatible, match=r"a_module_of_vllms\.called"):
            compat.current(symbol)


def test_rows_behind_the_batchs_end_are_of_no_request():
    """V1's batch keeps what it held before in its arrays."""
    requests = {name: SimpleNamespace(lora_request=name.upper()) for name in ("a", "b", "gone")}
    batch = SimpleNamespace(num_reqs=2, req_ids=["a", "b", "gone"], num_computed_tokens_cpu=np.array([5, 0, 99, 7]))
    assert compat.v1_rows(SimpleNamespace(requests=requests), batch) == [("A", 5), ("B", 0)]
