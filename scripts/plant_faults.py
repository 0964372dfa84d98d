"""Plant each of ``scripts/one_line_faults.py`` in a copy of the package, and run the tests that must catch it.

    python -m scripts.plant_faults                     all, an hour or two of one core
    python -m scripts.plant_faults --rooms prompt bundle
    python -m scripts.plant_faults --tests tests/unit  by other tests than those of the room

Exit code 1 where a fault is not caught. The first failing test of each is printed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.one_line_faults import FAULTS, TESTS, Fault

ROOT = Path(__file__).resolve().parent.parent
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def planted(fault: Fault, package: Path) -> str:
    """The text of the fault's file with the fault in it.

    Raises:
        ValueError: the text stands there never, or more than once.
    """
    content = (package / fault.file).read_text(encoding="utf-8")
    if (count := content.count(fault.text)) != 1:
        raise ValueError(f"{fault.file} holds {count} times: {fault.text}")
    return content.replace(fault.text, fault.fault)


def caught_by(fault: Fault, copy: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails with the fault in it; None where all pass."""
    file = copy / "alora" / fault.file
    before = file.read_text(encoding="utf-8")
    file.write_text(planted(fault, copy / "alora"), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for part in tests:  # one process for each: an engine of vLLM leaves its process unusable for another kind
            ran = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", part],
                cwd=copy, env=environment, capture_output=True, text=True,
            )  # fmt: skip
            if ran.returncode:
                found = _FAILED.search(ran.stdout)
                return found[1] if found else f"exit code {ran.returncode} of {part}"
    finally:
        file.write_text(before, encoding="utf-8")
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults of some rooms, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rooms", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--tests", nargs="*", help="default: those of the room")
    given, missed, count = parser.parse_args(argv), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in files.splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        for room in given.rooms:
            for fault in FAULTS[room]:
                test = caught_by(fault, copy, given.tests or TESTS[room])
                count, missed = count + 1, missed + (test is None)
                print(f"{room:9} {fault.file:26} {fault.fault[:50].strip()!r:54} {test or 'NOT CAUGHT'}", flush=True)
    print(f"\n{count - missed} of {count} faults are caught")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
