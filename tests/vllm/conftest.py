"""Fixtures for the tests that run real vLLM. They fail, never skip, where vLLM is missing."""

import os
import warnings

import pytest

if os.environ.get("ALORA_TEST_RUNNER") == "v2":  # before anything imports Triton
    from tests.vllm import triton_interpreter

    triton_interpreter.enable()

from tests.vllm import toy_engine

os.environ.update(toy_engine.ENVIRONMENT)

with warnings.catch_warnings(action="ignore"):  # of vLLM's own import, before pytest can be told
    from alora.vllm_plugin import stand_ins  # noqa: F401

from tests import forked
from tests.vllm import toys as toy_store

forked.preload(
    *("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.cli.serve", "vllm.v1.engine.core"),
    *("vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen3", "vllm.lora.worker_manager"),
    *("alora.commands.serve", "alora.commands.validate", "alora.lab.bench.serving"),
)

# vLLM, torch and transformers warn about their own code; none of these can come from ours.
_THIRD_PARTY = (
    "ignore::DeprecationWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::FutureWarning",
    "ignore:.*TracerWarning.*",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::UserWarning:torch.*",
    "ignore::UserWarning:vllm.*",
    "ignore::UserWarning:peft.*",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "vllm":
            for ignored in _THIRD_PARTY:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session", autouse=True)
def plugin():
    """The plugin as vLLM itself would have registered it."""
    from alora.vllm_plugin import register, status

    register()
    assert status().active, status().reason


@pytest.fixture(scope="session")
def toys() -> toy_store.Toys:
    return toy_store.toys("qwen3")


@pytest.fixture(scope="session")
def reference():
    return toy_store.reference("qwen3")


@pytest.fixture
def engine():
    """The shared Qwen3 engine, with an empty cache."""
    shared = toy_store.engine("qwen3")
    shared.clear()
    return shared
