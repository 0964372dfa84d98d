"""What a launcher's environment may hold."""

import pytest

from alora.errors import RunError
from alora.training.processes import ALONE, join_processes

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_a_process_is_alone(monkeypatch):
    assert join_processes("cpu") is ALONE
    for name, value in {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}.items():
        monkeypatch.setenv(name, value)  # as accelerate launch has it
    for key, value in (LAUNCHED | {"WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(key, value)
    assert join_processes("cpu") is ALONE


@pytest.mark.parametrize("count", ["1", "2"])
@pytest.mark.parametrize(
    ("name", "value"), [("MIXED_PRECISION", "bf16"), ("USE_DEEPSPEED", "True"), ("DYNAMO_BACKEND", "INDUCTOR")]
)
def test_what_accelerate_is_asked_for_and_no_training_does_is_refused(name, value, count, monkeypatch):
    for key, own in (LAUNCHED | {"WORLD_SIZE": count, f"ACCELERATE_{name}": value}).items():
        monkeypatch.setenv(key, own)
    with pytest.raises(RunError, match=f"ACCELERATE_{name}={value}"):
        join_processes("cpu")


@pytest.mark.parametrize(
    ("there", "named"),
    [
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK is .* without RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is .* without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({name: value for name, value in LAUNCHED.items() if name != "MASTER_ADDR"}, "without MASTER_ADDR,"),
    ],
)
def test_half_of_what_a_launcher_sets_is_refused(there, named, monkeypatch):
    for key, value in there.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(RunError, match=named):
        join_processes("cpu")
