"""Plant each fault and run the test that must fail because of it.

Run as ``python -m tests.vllm.run_planted_faults OUT.json``: one process and one engine for all of them. Each named test
is run first as things are (it must pass), then with the fault planted. ``test_planted_faults.py`` reads the outcome.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.planted_faults import FAULTS


class _Outcomes:
    """A pytest plugin that keeps what became of each test."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = f"{report.when}: {report.longreprtext[-300:]}"
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def outcome(tests: list[str]) -> _Outcomes:
    found = _Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no", *tests], plugins=[found])
    return found


def main(out: str) -> None:
    sound = outcome(sorted({test for _, _, test in FAULTS}))
    told: dict[str, Any] = {"sound": {"passed": sound.passed, "failed": sound.failed}, "faults": {}}
    for name, plant, test in FAULTS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = outcome([test])
        told["faults"][name] = {"test": test, "failed": found.failed.get(test), "passed": found.passed}
    told["after"] = outcome([FAULTS[0][2]]).failed
    Path(out).write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
