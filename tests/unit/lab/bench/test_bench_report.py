"""What stands next to a figure in tables, plots and the documentation: extrapolated, a bound, or with what coverage."""

import json
import re
from pathlib import Path

import pytest

from alora.lab.bench.bench_report import markdown
from alora.lab.bench.record import load_record

RESULTS = Path(__file__).parents[4] / "benchmarks/results"


RECORDS = sorted([*RESULTS.glob("serving_*.json"), *RESULTS.glob("training_*.json")])


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_committed_reports_are_those_of_the_committed_records(file):
    """But for their intervals, which the tests draw from few resamples."""
    texts = file.with_suffix(".md").read_text(), markdown(load_record(file))
    committed, made = (re.sub(r"\[[\d., ]+\]", "", text) for text in texts)
    assert committed == made


OLD = {"gpu_acceptance", "vllm_matrix"}  # older than their scripts' word on it
DIRTY = {"guard_5_float32_cpu"}  # measured next to a change that was not committed yet


@pytest.mark.parametrize(
    "file", sorted(file for file in RESULTS.glob("*.json") if file.stem not in OLD), ids=lambda file: file.stem
)
def test_every_committed_result_says_which_command_commit_and_processor_it_is_of(file):
    content = json.loads(file.read_text())
    for record in content if isinstance(content, list) else [content]:
        assert record["environment"]["command"]
        assert record["environment"]["cpu flags"]
        assert re.fullmatch("[0-9a-f]{40}" + "(-dirty)?" * (file.stem in DIRTY), record["environment"]["commit"])
