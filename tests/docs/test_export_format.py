"""docs/export_format.md names every key of alora.json, and no other."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from alora.base.fingerprint import Fingerprint
from alora.bundle.manifest import BaseRecord, CardRecord, CertificateRecord, Manifest, MoveRecord
from alora.config.schema import EvaluationSettings, PromptSettings
from alora.evaluation.predict import Predictions
from alora.evaluation.records import Estimate
from alora.evaluation.tables import evaluate
from alora.policy import Policy
from alora.prompt.render import Suffix
from alora.received import FileRecord
from alora.verdict import OperatingPoint
from scripts.run_docs import ROOT

PAGE = ROOT / "docs" / "export_format.md"
_ROW = re.compile(r"^\| (?P<keys>`[^|]+`) \|", re.MULTILINE)


def documented() -> set[str]:
    text = PAGE.read_text(encoding="utf-8")
    rows = _ROW.findall(text[text.index("## alora.json") : text.index("## What is checked")])
    return {key for row in rows for key in re.findall(r"`([\w.\[\]]+)`", row)}


def keys(value: Any, known: set[str], path: str = "") -> Iterator[str]:
    """Dotted keys of ``value``, with the page's own words for lists and for maps of any name; as deep as it goes."""
    if path in known:
        yield path
    elif isinstance(value, dict):
        any_name = f"{path}.NAME" in known or any(key.startswith(f"{path}.NAME.") for key in known)
        for name, child in value.items():
            step = "NAME" if any_name else name
            yield from keys(child, known, f"{path}.{step}" if path else step)
    elif isinstance(value, list):
        for child in value:
            yield from keys(child, known, f"{path}[]")
    else:
        yield path


def manifest() -> Manifest:
    policy = Policy("toy", "No red", "Nobody says red.")
    point = OperatingPoint(
        1.0, 0.5, 0.4, 0.6, "cost", 0.01, 4, 2, (1.0, 10.0), "float32", "vllm", (2, *[0] * 8, 2), 0.3
    )
    leads = {"auroc": Estimate(0.1, 0.0, 0.2)}
    predictions = Predictions(policy, np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 1]))
    return Manifest(
        activated=True,
        policy=policy,
        prompt=PromptSettings(),
        template_kwargs={"enable_thinking": False},
        suffix=Suffix((5, 6), (5,), (7, 8)),
        base=BaseRecord("smollm2", Fingerprint("w", "t", "c"), "float32"),
        adapter_digest="d",
        operating_point=point,
        files={"README.md": FileRecord(1, "a")},
        versions={"alora": "1"},
        created="now",
        certificate=CertificateRecord("s", True, "now", ("float32",)),
        evaluations=(
            replace(
                evaluate(predictions, point, EvaluationSettings(bootstrap=2), method="alora", rules={"ok": 0.5}),
                leads=leads,
            ),
        ),
        data={"train": {"ok": 1}},
        moved=MoveRecord("nf4", "float32", 8, 7, 0.1),
        card=CardRecord("mit", ("en",), {"epochs": "2.0"}),
    )


def test_the_page_names_every_key_and_no_other():
    known = documented()
    assert len(known) > 40
    assert set(keys(json.loads(manifest().to_json()), known)) == known
