"""What a command says."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from alora.atomic import write_text
from alora.batch.stored_verdicts import METADATA
from alora.cli import report
from alora.commands.output import report_file, report_file_in, say, say_json, table
from alora.errors import ConfigError, PolicyError
from alora.evaluation.report_html import render_overview
from alora.evaluation.tables import write_predictions
from alora.text import note


def test_remarks_stay_out_of_the_result(capsys):
    note("a remark")
    say_json({"a": [1, None]})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": [1, None]}
    assert captured.err == "a remark\n"


def test_received_text_does_not_steer_the_terminal(capsys):
    """Labels, ids and a server's words are printed as they are; a terminal would obey them."""
    hostile = "\x1b[2J\x9b1A\r\x00\x7f\u202e\x07"
    say(f"two\nlines{hostile}")
    note(hostile)
    table((f"head{hostile}",), [(f"cell{hostile}\nforged row",)])
    report(PolicyError(f"label {hostile}"))
    shown = capsys.readouterr()
    assert not set(hostile) - set("[2J1A") & set(shown.out + shown.err)
    assert shown.out.startswith("two\nlines\\u001b[2J\\u009b1A\\u000d")
    assert "\\nforged row" in shown.out
    say_json({"id": hostile})
    assert json.loads(capsys.readouterr().out) == {"id": hostile}


VERDICTS = '{"conversation": "c", "prefix_tokens": 1, "truncation": null'
NO_REPORTS = {
    "rows": '{"messages": []}\n{"messages": []}\n',
    "a text": "Dear diary",
    "rows of one's own": '{"conversation": [{"role": "user", "content": "Hi"}], "verdicts": {"anna": "ok"}}',
    "verdicts with a column of one's own": f'{VERDICTS}, "verdicts": [], "human": "ok"}}',
    "verdicts with a word in one": f'{VERDICTS}, "verdicts": [{{"policy": "p", "human": "ok"}}]}}',
}
REPORTS = {
    "verdicts": {"conversation": "c", "prefix_tokens": 1, "truncation": None, "verdicts": []},
    "evaluation": {"schema_version": 1, "evaluations": []},
    "fleet": {"schema_version": 1, "evaluations": [], "drifts": [], "regressed": [], "crossfire": {}},
    "certificate": {"passed": True, "adapter_digest": "", "dtypes": []},
    "certificate of several": {"passed": True, "failures": {}, "certificates": {}},
    "check": {"ready": True, "findings": [], "splits": {}},
    "doctor": {"environment": {}, "findings": []},
    "bench": {"benchmark": "serving", "environment": {}, "cells": []},
    "plan": {"plans": [], "facts": {}, "assumptions": []},
}


@pytest.mark.parametrize("name", NO_REPORTS)
def test_a_report_replaces_no_file_of_another_kind(name, tmp_path):
    file = tmp_path / "file.json"
    assert report_file(file) == file  # not there yet
    file.write_text(NO_REPORTS[name])
    (tmp_path / "link.json").symlink_to(file)
    for place in (file, tmp_path / "link.json"):
        with pytest.raises(ConfigError):
            report_file(place)


def test_pages_and_tables_of_alora_are_reports_and_no_others(tmp_path):
    page, rows = tmp_path / "e.html", tmp_path / "e.parquet"
    write_text(page, render_overview({}, {}))
    write_predictions(rows, [])
    assert (report_file(page), report_file(rows)) == (page, rows)
    page.write_text("<!doctype html><!-- mine -->")
    parquet.write_table(pyarrow.table({"policy": ["mine"]}), rows)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    verdicts = pyarrow.table({"row": [0]}).replace_schema_metadata({METADATA: "{}"})
    parquet.write_table(verdicts, tmp_path / "verdicts.parquet")  # score's, which may have taken days
    for file in (page, rows, tmp_path / "cut.parquet", tmp_path / "verdicts.parquet"):
        with pytest.raises(ConfigError):
            report_file(file)


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_replaces_a_report(name, tmp_path):
    file = tmp_path / "file.json"
    file.write_text(json.dumps(REPORTS[name]))
    assert report_file(file) == file


def test_records_of_a_bundle_a_run_and_an_adapter_are_no_place_for_a_report(tmp_path):
    certificate = json.dumps(REPORTS["certificate"])
    for home, mark in (("bundle", "alora.json"), ("run", "run.yaml"), ("bare", "adapter_config.json")):
        (tmp_path / home).mkdir()
        for name in (mark, "identity.json"):
            (tmp_path / home / name).write_text(certificate)
    for homes in ((), (tmp_path / "other",), (tmp_path / "run/other", tmp_path / "run/policies/p")):
        for place in ("bundle/alora.json", "bundle/identity.json", "run/identity.json", "bare/identity.json"):
            with pytest.raises(ConfigError):
                report_file(tmp_path / place, *homes)
    (tmp_path / "run/policies/p").mkdir(parents=True)
    for own, home in (("run/policies/p/adapter", "run/policies/p"), ("run/adapter", "run"), ("bare", "bare")):
        assert report_file(tmp_path / home / "identity.json", tmp_path / own, tmp_path / home)  # as export asks for it
    assert report_file(tmp_path / "bare/evaluation.json", tmp_path / "bare")  # where export looks for it
    others = (("bundle", "bundle/identity.json"), ("run", "run/evaluation.json"), ("x", "bare/evaluation.json"))
    for own, place in others:
        with pytest.raises(ConfigError):
            report_file(tmp_path / place, tmp_path / own)


def test_what_a_run_and_a_bundle_make_again_is_no_place_for_a_report(tmp_path, monkeypatch):
    """A stranger there would stop recalibrate."""
    run = tmp_path / "run"
    for folder in ("battery/red", "policies/red", "checkpoints"):
        (run / folder).mkdir(parents=True)
    (run / "bundle").symlink_to("battery/red")
    (run / "battery/red/alora.json").write_text("{}")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped/alora.json").write_text("{}")
    for name in ("run.yaml", "inputs.json"):
        (run / name).write_text("")
    for place in ("bundle", "battery", "battery/red", "policies/red", "checkpoints", "../shipped", "../shipped/x"):
        for homes in ((), (run / place,)):
            with pytest.raises(ConfigError):
                report_file_in(str(run / place / "mine.json"), "evaluation.json", *homes)
    for place in ("run", "run/mine", "battery", "mine"):
        assert report_file(tmp_path / place / "mine.json") == tmp_path / place / "mine.json"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="output=- is not a file"):
        report_file_in("-", "evaluation.json")
