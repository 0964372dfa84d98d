"""What a record says of the machine."""

import sys
from types import SimpleNamespace

import pytest

from alora.config.environment import describe_environment


@pytest.mark.parametrize(("name", "told"), [("NVIDIA H100", "NVIDIA H100"), (None, None)], ids=["a GPU", "none"])
def test_a_record_names_the_gpu_that_torch_sees(name, told, monkeypatch):
    cuda = SimpleNamespace(is_available=lambda: name is not None, get_device_name=lambda: name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert describe_environment().get("gpu") == told
