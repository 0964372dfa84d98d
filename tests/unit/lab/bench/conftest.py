"""Few resamples behind every interval, and collections that do not visit what was imported: neither is looked at."""

import gc

import pytest

from alora.lab.bench import trials


@pytest.fixture(scope="module", autouse=True)
def frozen_imports():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch, request):
    if request.module.__name__.rpartition(".")[2] != "test_trials":
        monkeypatch.setattr(trials, "RESAMPLES", 9)
