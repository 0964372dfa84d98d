"""Every metric and label in the dashboard and the alerts is one that the app exports."""

import json
import re
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from alora.guard import exported_metrics as metrics
from alora.guard.standalone import make_app
from tests.integration.guard.conftest import MESSAGES

DEPLOY = Path(__file__).parents[3] / "deploy"
OF_PROMETHEUS = {"instance", "job", "le"}
METRIC = re.compile(r"\b(alora_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def exported(guard):
    """Labels by the name of each sample."""
    metrics.DISAGREEMENT.labels("advice", "violation", "ok")  # nothing disagrees here
    metrics.UNLIKE.labels("advice", "true")
    with TestClient(make_app(guard)) as client:
        client.post("/v1/guard", json={"messages": MESSAGES})
        client.post("/v1/guard", json={})
        text = client.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples if sample.name.startswith("alora_")}


def unknown(expression, text, exported):
    """What of a PromQL expression, and of the labels that the text on it names, is not exported."""
    found = METRIC.findall(expression)
    assert found, expression
    bad = {name for name, _ in found if name not in exported}
    known = set.union(OF_PROMETHEUS, *(exported[name] for name, _ in found if name in exported))
    for name, matchers in found:
        named = set(re.findall(r"(\w+)\s*[=!]", matchers))
        bad |= {f"{name}: {label}" for label in named - exported.get(name, set()) - OF_PROMETHEUS}
    grouped = ",".join(re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression))
    used = set(re.findall(r"\w+", grouped)) | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
    return bad | (used - known)


def dashboard():
    board = json.loads((DEPLOY / "grafana" / "alora-guard.json").read_text())
    for panel in board["panels"]:
        yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
            yield f"sum by ({label}) ({metric})", ""


def alerts():
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alora-alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        yield rule["expr"], " ".join(rule["annotations"].values())


@pytest.mark.parametrize("expressions", [dashboard, alerts])
def test_every_name_is_exported(exported, expressions):
    found = list(expressions())
    assert len(found) > 5
    assert {pair: bad for pair in found if (bad := unknown(*pair, exported))} == {}


def test_an_alert_fires_where_nothing_is_exported(exported):
    """The others compare values, and there are none where no guard is left."""
    (metric,) = re.findall(r"^absent\((\w+)\)$", "\n".join(expression for expression, _ in alerts()), re.MULTILINE)
    assert exported[metric] == set()  # no label: it is there before the first request


@pytest.mark.parametrize(
    ("expression", "text", "bad"),
    [
        ("rate(alora_guard_request_total[5m])", "", {"alora_guard_request_total"}),
        ('alora_guard_psi{tenant="a"}', "", {"alora_guard_psi: tenant"}),
        ("sum by (status) (alora_guard_requests_total)", "", {"status"}),
        ("alora_guard_requests_total", "by {{policy}}", {"policy"}),
    ],
)
def test_a_name_that_is_not_exported_is_found(exported, expression, text, bad):
    assert unknown(expression, text, exported) == bad
