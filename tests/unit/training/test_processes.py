"""What a launcher's environment may hold."""

import pytest

from alora.errors import RunError
from alora.training.processes import ALONE, join_processes

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_word_where_a_launcher_sets_a_number_is_named(name, monkeypatch):
    for key, value in (LAUNCHED | {name: "x"}).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(RunError, match=f"{name} is 'x'"):
        join_processes("cpu")


def test_without_a_launcher_a_process_is_alone(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert join_processes("cpu") is ALONE


def test_nor_may_the_number_of_processes_be_a_word_without_a_launcher(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "x")
    with pytest.raises(RunError, match="WORLD_SIZE is 'x'"):
        join_processes("cpu")
