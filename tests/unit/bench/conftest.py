"""Few resamples behind every interval: what is looked at here are not their ends."""

import pytest

from alora.bench import intervals


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch, request):
    if request.module.__name__.rpartition(".")[2] != "test_intervals":
        monkeypatch.setattr(intervals, "RESAMPLES", 9)
