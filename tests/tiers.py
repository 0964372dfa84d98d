"""Which tests `make test` leaves to `make nightly`, and which changes ask for them all the same.

python -m tests.tiers BASE    the nightly tests of the rooms that were changed since the commit BASE
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """Tests that run at night, and after a change below one of the paths that they ``cover``."""

    tests: tuple[str, ...]
    cover: tuple[str, ...]


PARTS = {
    "planted faults": Part(("tests/vllm/test_planted_faults.py",), ("alora/vllm_plugin", "alora/activation.py")),
    "many engines": Part(
        ("tests/vllm/test_processes.py", "tests/vllm/test_guard_processes.py",
         "tests/vllm/test_gpu_cells.py", "tests/vllm/test_bench.py"),
        ("alora/vllm_plugin", "alora/guard", "alora/client", "alora/lab", "scripts/gpu.py"),
    ),
    "commands on vLLM": Part(
        ("tests/vllm/test_recalibrate.py",
         "tests/vllm/test_bundles.py::test_a_partly_absent_adapter_fails_in_vllm_too",
         "tests/vllm/test_bundles.py::test_the_whole_adapter_is_there_in_an_engine_without_golden_rows"),
        ("alora/vllm_plugin", "alora/client", "alora/commands/recalibrate.py", "alora/commands/validate.py"),
    ),
    "processes": Part(("tests/integration/distributed",), ("alora/training", "alora/prefix", "alora/adapter")),
    "launchers": Part(
        ("tests/integration/sweep", "tests/integration/commands/test_score_logs_ray.py"),
        ("alora/config", "alora/batch"),
    ),
    "notebooks": Part(("tests/notebooks",), ("notebooks", "scripts/run_notebooks.py")),
    "quantized bases": Part(("tests/integration/quantized",), ("alora/base",)),
    "lab": Part(
        ("tests/integration/lab/compare/test_compare.py", "tests/integration/lab/bench/test_command.py",
         "tests/integration/lab/bench/test_material.py"),
        ("alora/lab", "configs/bench"),
    ),
    "installs": Part(
        ("tests/integration/test_doctor.py::test_planted_faults_are_found_and_fail",),
        ("alora/commands/doctor.py", "pyproject.toml"),
    ),
    "memory": Part(
        ("tests/integration/lab/bench/test_measure.py"
         "::test_the_split_needs_a_quarter_of_the_memory_and_no_more_with_more_policies",),
        ("alora/prefix", "alora/training", "scripts/step_memory.py"),
    ),
    "other clients": Part(("tests/integration/guard/test_clients.py",), ("alora/guard", "alora/wire", "docs/guard.md")),
    "pages": Part(
        ("tests/docs/test_pages.py::test_every_command_of_the_quickstart_runs",), ("docs/quickstart.md", "README.md")
    ),
}  # fmt: skip
NIGHTLY = tuple(test for part in PARTS.values() for test in part.tests)


def is_nightly(test: str) -> bool:
    """Whether the test of a pytest node id is left to the night."""
    return any(test == name or test.startswith((f"{name}/", f"{name}::", f"{name}[")) for name in NIGHTLY)


def asked_by(changed: list[str]) -> list[str]:
    """The nightly tests that changes of these files ask for."""
    touched = [
        part for part in PARTS.values()
        if any(file == path or file.startswith(f"{path}/") for file in changed for path in (*part.cover, *part.tests))
    ]  # fmt: skip
    return [test for part in touched for test in part.tests]


def main() -> int:
    """Print the tests, one a line."""
    changed = ["git", "diff", "--name-only", sys.argv[1], "HEAD"]
    names = subprocess.run(changed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    sys.stdout.write("".join(f"{test}\n" for test in asked_by(names)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
