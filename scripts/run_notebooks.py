"""Run the notebooks and keep what they show: ``python scripts/run_notebooks.py [NOTEBOOK ...]`` writes them back.

What is written is clean: no execution counts, no remarks of libraries, no metadata but the language.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TIMEOUT_SECONDS = 600
_QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}


def execute(file: Path) -> Any:
    """Run a notebook in a kernel of this interpreter, in its own folder; nbclient's error when a cell raises."""
    notebook = nbformat.read(file, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=TIMEOUT_SECONDS,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(file.parent)}},
    )
    client.execute(env=os.environ | _QUIET)
    return clean(notebook)


def clean(notebook: Any) -> Any:
    """Take out what differs from run to run without being a result."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        | {"language_info": {"name": "python"}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = _joined([output for output in cell.outputs if output.get("name") != "stderr"])
        for output in cell.outputs:
            output.pop("execution_count", None)
            if output.output_type == "execute_result":
                output.execution_count = None
            if "data" in output and "image/png" in output.data:
                output.data = nbformat.from_dict({"image/png": output.data["image/png"]})
    return notebook


def _joined(outputs: Sequence[Any]) -> list[Any]:
    """Neighbouring pieces of printed text as one: where a kernel cuts them is chance."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def main(argv: Sequence[str] | None = None) -> int:
    """Run the notebooks that are named, or all of them, and write them back."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    for file in parser.parse_args(argv).notebooks or sorted(FOLDER.glob("*.ipynb")):
        started = time.monotonic()
        text = nbformat.writes(execute(file.resolve()))
        file.write_text(text.rstrip() + "\n", encoding="utf-8")
        print(f"{file.name:32} {time.monotonic() - started:5.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
