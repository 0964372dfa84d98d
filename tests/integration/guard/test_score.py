"""alora score of a log by a guard: it knows its bundles, so a URL is enough."""

import json

import pyarrow.parquet
import pytest

import alora
from alora.cli import main
from tests.integration.guard.test_client import url

__all__ = ["url"]

TEXTS = [f"Where is parcel {number}? " * (1 + number % 5) for number in range(21)]


@pytest.fixture
def log(tmp_path):
    rows = [{"id": f"c{n}", "messages": [{"role": "user", "content": text}]} for n, text in enumerate(TEXTS)]
    rows[5] = {"messages": [{"role": "user", "content": "long " * 40_000}]}
    rows[7] = {"messages": []}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "log.jsonl"


def test_the_verdicts_are_the_guards_and_no_row_is_lost(url, log, tmp_path):
    output = tmp_path / "v.parquet"
    asked = ["score", f"scorer={url}", f"data={log}", f"output={output}", "logs.shard_rows=8"]
    assert main(asked) == 0
    found = pyarrow.parquet.read_table(output).to_pylist()
    assert [row["row"] for row in found] == [n for n in range(21) if n not in (5, 7)]
    with alora.Guard(url) as guard:
        for row in found[::6]:
            for verdict in guard.check([{"role": "user", "content": TEXTS[row["row"]]}]).verdicts:
                own = [row[f"{verdict.policy}_{name}"] for name in ("label", "flagged", "threshold")]
                assert own == [verdict.label, verdict.flagged, verdict.threshold]
                assert row[f"{verdict.policy}_probability"] == pytest.approx(verdict.probability, abs=1e-6)
                assert verdict.adapter.endswith(row[f"{verdict.policy}_adapter"][:12])
    rejected = [json.loads(line) for line in (tmp_path / "v.rejected.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rejected] == [5, 7]
    assert "answered 413" in rejected[0]["reasons"][0]
    assert main(["score", "scorer=http://127.0.0.1:1", f"data={log}", f"output={tmp_path / 'w.parquet'}"]) == 2
    assert not (tmp_path / "w.parquet.parts").exists()
