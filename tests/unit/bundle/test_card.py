"""Which figures a card gives to the hub."""

import re
from dataclasses import replace

import pytest
import yaml

from alora.adapter.folder import AdapterSpec
from alora.base.fingerprint import Fingerprint
from alora.bundle.card import model_card
from alora.bundle.manifest import CardRecord, CertificateRecord, MoveRecord
from alora.config.schema import PromptSettings
from alora.verdict import OperatingPoint
from tests.unit.bundle.cases import BASE, evaluation, manifest

SPEC = AdapterSpec(4, 8.0, ("q_proj",), (5,))
MOVED = MoveRecord("none", "float32", 8, 8, 0.1)


def header(**changes) -> dict:
    return yaml.safe_load(model_card(manifest(**changes), SPEC).split("---\n")[1])


def test_the_figures_are_those_of_the_first_evaluation_each_under_its_name():
    own = evaluation(accuracy=0.91, f1=0.82, precision=0.73, recall=0.64, auroc=0.95)
    (result,) = header(evaluations=(own, evaluation("validation")))["model-index"][0]["results"]
    assert result["dataset"]["split"] == "test"
    assert {item["type"]: item["value"] for item in result["metrics"]} == {
        "accuracy": 0.91, "f1": 0.82, "precision": 0.73, "recall": 0.64, "roc_auc": 0.95,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"moved": MOVED}, {"operating_point": OperatingPoint(dtype="bfloat16")}, {"evaluations": ()}]
)
def test_figures_of_another_base_or_point_are_no_results(change):
    assert "model-index" in header(evaluations=(evaluation(),))
    assert "model-index" not in header(**{"evaluations": (evaluation(),)} | change)


@pytest.mark.parametrize("line", ["===", "---", "- x", "+ x", "-", "1. x", "12) x", "= a"])
def test_a_line_of_the_rule_begins_no_block(line):
    made = manifest()
    given = replace(made, policy=replace(made.policy, rule=f"first\n{line}\nlast"))
    quoted = [text[2:] for text in model_card(given, SPEC).splitlines() if text.startswith("> ")]
    assert quoted[1].replace("\\", "") == line
    assert not re.match(r"[-+=]|\d+[.)]", quoted[1])


def test_no_text_of_a_received_bundle_is_markup():
    hostile = "<b>[x](y)\x1b[31m|\n# z"
    given = manifest(
        prompt=PromptSettings(layout=hostile, truncation=hostile),
        base=replace(BASE, revision=hostile, fingerprint=Fingerprint(hostile, hostile, hostile)),
        evaluations=(replace(evaluation(hostile), method=hostile),),
        operating_point=OperatingPoint(dtype="bfloat16", engine=hostile),
        moved=replace(MOVED, quantization=hostile),
        certificate=CertificateRecord("0", True, hostile, (hostile,)),
        card=CardRecord(hostile, (hostile,), {hostile: hostile}),
        data={hostile: {hostile: 3}},
    )
    page = model_card(given, SPEC)
    assert page.count("z") > 20
    body = re.sub(r"`[^`\n]*`", "", page.split("---\n", 2)[2])
    assert not re.search(r"<b>|(?<!\\)\[x|\x1b|^# z|(?<!\\)\|(?! |$)", body, re.MULTILINE)
    assert "\x1b" not in page
