import atexit
import gc
import os

import pytest

from tests.tiers import is_nightly

for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):  # every server that a test asks is on this machine
    os.environ.pop(name, None)
    os.environ.pop(name.lower(), None)

gc.disable()  # until all is imported: each collection would walk all of torch and find nothing

# A long file that starts last leaves the other processes idle.
LONGEST_FIRST = (
    *("docs/test_pages", "commands/test_score_logs_ray", "notebooks/test_notebooks", "training/test_battery"),
    *("training/test_resume", "integration/distributed", "integration/test_doctor", "base/test_gguf"),
    *("integration/lab/compare", "integration/sweep", "bench/test_measure", "integration/identity"),
    *("integration/bad_input", "integration/tracking", "integration/training", "integration/"),
    *("vllm/test_planted_faults", "vllm/test_processes", "vllm/test_bench", "vllm/test_guard"),
    *("vllm/test_recalibrate", "vllm/test_bundles"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-messages", action="store_true", help="write bad_input/messages.json anew (with -n 0)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((at for at, part in enumerate(LONGEST_FIRST) if part in item.nodeid), len(LONGEST_FIRST))

    items.sort(key=place)
    for item in items:
        if is_nightly(item.nodeid):
            item.add_marker(pytest.mark.nightly)


def pytest_collection_finish() -> None:
    """What was imported stays: a collection that walks all of torch and Hydra each time is half of the unit tier."""
    gc.enable()
    if not gc.get_freeze_count():  # one process may run many sessions
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)
