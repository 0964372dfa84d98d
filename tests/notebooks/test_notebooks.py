"""Each notebook runs in a real kernel, defines nothing, and shows what it found without being run."""

import ast
import base64
import copy
import re
import socket
from pathlib import Path

import nbformat
import pytest

from scripts.run_notebooks import FOLDER, execute

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
READS_RECORDS = {"serving_speed", "lora_vs_alora_accuracy"}  # measure nothing, so their values are the committed ones
NAMES = ["kv_identity", "lora_vs_alora_accuracy", "serving_speed"]
_FOREIGN = re.compile(r"/(?:home|root|tmp|work|Users|mnt|opt)/|[A-Z]:\\")
_WIDEST_PNG, _LARGEST_NOTEBOOK = 100_000, 400_000  # bytes


def code(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def definitions(source: str) -> list[str]:
    """What a cell defines beside values."""
    lines = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return [type(node).__name__ for node in ast.walk(ast.parse(lines)) if isinstance(node, kinds)]


def shown(notebook) -> list[tuple[str, str]]:
    """(kind, content) of every committed output."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                found.append(("text", output.text))
            found += list(output.get("data", {}).items())
    return found


def problems(notebook) -> list[str]:
    """What keeps a committed notebook from being read without running it, or tells of the machine that ran it."""
    found = []
    for kind, content in shown(notebook):
        if kind == "image/png":
            if len(base64.b64decode(content)) > _WIDEST_PNG:
                found.append("a picture is too large")
            continue
        found += [f"names a place of one machine: {match[0]}" for match in _FOREIGN.finditer(content)]
        if socket.gethostname() in content and len(socket.gethostname()) > 4:
            found.append("names the machine")
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.execution_count is not None:
            found.append("keeps an execution count")
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            found.append("shows an error")
    return found


def test_every_notebook_is_here():
    assert [file.stem for file in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_imports_alora_and_defines_nothing(file):
    notebook = nbformat.read(file, as_version=4)
    assert [kind for source in code(notebook) for kind in definitions(source)] == []
    assert any(
        line.startswith(("from alora", "import plots")) for source in code(notebook) for line in source.splitlines()
    )


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_reads_well_without_running(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert problems(notebook) == []
    assert any(kind == "image/png" for kind, _ in shown(notebook))
    assert file.stat().st_size < _LARGEST_NOTEBOOK


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_runs_and_shows_as_much_as_is_committed(file):
    committed, made = nbformat.read(file, as_version=4), execute(file)
    assert problems(made) == []
    assert [cell.source for cell in made.cells] == [cell.source for cell in committed.cells]
    assert [kind for kind, _ in shown(made)] == [kind for kind, _ in shown(committed)]
    if file.stem in READS_RECORDS:
        assert texts(made) == texts(committed)


def texts(notebook) -> list[str]:
    """What it prints, line by line."""
    return [line for kind, content in shown(notebook) if kind == "text" for line in content.splitlines()]


def test_another_value_is_found():
    """Negative control of the comparison above: one digit of one line."""
    committed = nbformat.read(FOLDER / "serving_speed.ipynb", as_version=4)
    changed = copy.deepcopy(committed)
    output = next(output for cell in changed.cells for output in cell.get("outputs", []) if "text" in output)
    output.text = output.text.replace("134 M", "135 M")
    assert texts(changed) != texts(committed)


def one_cell(source: str, *outputs) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, outputs=list(outputs))])


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (nbformat.v4.new_output("stream", text=str(Path("/home/someone/runs"))), "place of one machine"),
        (nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]), "shows an error"),
        (
            nbformat.v4.new_output("display_data", data={"image/png": base64.b64encode(bytes(200_000)).decode()}),
            "too large",
        ),
    ],
)
def test_a_bad_output_is_found(output, problem):
    assert problem in " ".join(problems(one_cell("1", output)))
