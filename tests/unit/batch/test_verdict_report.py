"""alora report: figures that are recomputed here row by row, and texts that nothing lets become markup."""

import re

import pytest

from alora.batch.verdict_report import Summary, day_of, report
from alora.cli import main
from tests.unit.batch.cases import HOSTILE, POLICIES, log, probability, verdicts

ROWS = 200


@pytest.fixture
def place(tmp_path):
    return verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS))


def tables(place, texts=()):
    return {table.title: table for table in report(Summary(place, 3), dict(texts))}


def test_rates_and_who_fires_together(place):
    flagged = {policy: {n for n in range(ROWS) if probability(n, policy) >= 0.5} for policy in POLICIES}
    found = tables(place)
    assert [row[:2] for row in found["Rates"].rows] == [(p, str(len(flagged[p]))) for p in POLICIES]
    both = len(flagged["advice"] & flagged["refunds"]) / len(flagged["advice"])
    assert found["Firing together"].rows[0] == ("advice", "100.00%", f"{both:.2%}")


def test_rates_over_time_are_by_day_in_utc(place):
    rows = tables(place)["Over time"].rows
    assert [row[0] for row in rows] == [f"2026-01-{day:02}" for day in range(2, 22)]  # 23:30 at -01:00 is the next day
    second = [n for n in range(10, 20) if probability(n, "advice") >= 0.5]
    assert rows[1][1:3] == ("10", f"{len(second) / 10:.2%}")
    for index, policy in enumerate(POLICIES):  # a row counts for each policy that flags it
        fired = [
            sum(probability(n, policy) >= 0.5 for n in range(day * 10, day * 10 + 10)) for day in range(ROWS // 10)
        ]
        assert [row[2 + index] for row in rows] == [f"{count / 10:.2%}" for count in fired]


@pytest.mark.parametrize(
    ("time", "day"),
    [("2026-03-01", "2026-03-01"), ("1770000000", "2026-02-02"), ("1770000000000.0", "2026-02-02"), ("soon", "unknown"),
     (None, "unknown"), ("nan", "unknown"), ("1e300", "unknown"), ("2026-01-01T00:30:00+01:00", "2025-12-31"),
     ("2026", "unknown"), ("20260301", "2026-03-01"), ("20261301", "unknown"), ("20260301091200", "unknown"),
     ("1770000000000000", "2026-02-02"), ("1770000000000000000", "2026-02-02")],
)  # fmt: skip
def test_a_day_of_any_time(time, day):
    assert day_of(time) == day


@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_examples_are_the_surest_and_the_nearest(threshold, tmp_path):
    found = tables(verdicts(tmp_path / "v", log(tmp_path, ROWS), threshold=threshold))
    ranked = sorted(range(ROWS), key=lambda n: (-probability(n, "advice"), n))
    surest = [int(row[2]) for row in found["The surest positive verdicts"].rows if row[0] == "advice"]
    assert surest == ranked[:3]
    nearest = sorted(range(ROWS), key=lambda n: (abs(probability(n, "advice") - threshold), n))
    near = [int(row[2]) for row in found["The verdicts nearest to the threshold"].rows if row[0] == "advice"]
    assert near == nearest[:3]


@pytest.mark.parametrize(
    ("histogram", "reading"),
    [
        ([20] * 10, "stable"),
        ([28, 12] * 5, "some drift"),
        ([190] + [1] * 9 + [1], "DRIFT"),
        ([5] * 10, "fewer than 100 rows to validate on"),
        (None, "no histogram"),
    ],
)
def test_drift_against_the_rows_that_it_was_validated_on(histogram, reading, tmp_path):
    histogram = histogram and histogram[:10]
    place = verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS), histogram=histogram)
    assert reading in tables(place)["Drift"].rows[0][2]


def test_nothing_of_a_row_becomes_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = log(tmp_path, 40, HOSTILE)
    verdicts(tmp_path / "v", source)
    assert main(["report", "verdicts=v", f"data={source}"]) == 0
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert "alert(1)" in page
    assert "<script" not in page + text
    assert not {"\x1b", "\u202e"} & set(page + text)
    assert r"\| \`x\` \[a\](b)" in text
    assert re.search(r"default-src 'none'", page)
    assert main(["report", "verdicts=v"]) == 0  # its own files are replaced
    assert "alert(1)" not in (tmp_path / "report.html").read_text()  # conversations are shown where data= is given


def test_other_files_and_other_rows_are_refused(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for mine in ("# Mine", "My notes on the alora report"):
        (tmp_path / "report.md").write_text(mine)
        assert main(["report", f"verdicts={place}"]) == 2
        assert "is not a report of alora's" in capsys.readouterr().err
        assert (tmp_path / "report.md").read_text() == mine
    (tmp_path / "report.md").unlink()
    assert main(["report", f"verdicts={place}", f"data={log(tmp_path, ROWS - 1)}"]) == 2
    assert "holds other rows than those that were scored" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    assert main(["report", "verdicts=log.jsonl"]) == 2
    assert "holds no verdicts in Parquet; alora score" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "needs verdicts=DIR" in capsys.readouterr().err
