"""The certificate as a file: whole, read back equal, and bound to one base and adapter."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alora.base.fingerprint import Fingerprint
from alora.errors import BundleError
from alora.identity.certificate import (
    Certificate,
    ControlRecord,
    DtypeRecord,
    Environment,
    FindingRecord,
    HandoverRecord,
    LayerRecord,
    ParityRecord,
    read_certificate,
    write_certificate,
)

BASE = Fingerprint("w" * 64, "t" * 64, "c" * 64)
RECORD = DtypeRecord(
    dtype="float32",
    passed=True,
    findings=(),
    layers=(LayerRecord("layer 0 K", True, 100, 0, 10, 10),),
    handovers=(HandoverRecord("conversation 1", 100, 0, 1e-7, 1e-4, True),),
    controls=(ControlRecord("B = 0", True, "activation check, conversation 1, row 0, layer 0 K, position 9: none"),),
)
CERTIFICATE = Certificate(
    passed=True,
    engine="transformers",
    created="2026-01-02T03:04:05+00:00",
    base_source="some/base",
    base=BASE,
    adapter_digest="a" * 64,
    invocation_ids=(5, 6),
    adapted_modules=("k_proj",),
    environment=Environment("0", "2", "5", "0.21", "3.11", "Linux x86_64", "cpu", 1, "sdpa"),
    lengths=(("conversation 1", (9,), 12), ("left-padded batch", (3, 9), 12)),
    dtypes=(RECORD,),
    notes=("a note",),
)


def test_round_trip(tmp_path: Path):
    path = tmp_path / "deep" / "identity.json"
    write_certificate(CERTIFICATE, path)
    assert read_certificate(path) == CERTIFICATE
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.json"]


@pytest.mark.parametrize(("difference", "count"), [(None, 1), (2e-4, 1), (1e-4, 0)])
def test_golden_rows_fail_beyond_the_tolerance_and_by_no_number(difference: float | None, count: int):
    parity = ParityRecord(8, "float32", "float32", difference, tolerance=1e-4, passed=not count)
    failures = replace(CERTIFICATE, passed=not count, parity=parity).failures
    assert [line.partition(":")[0] for line in failures] == ["golden rows"] * count


@pytest.mark.parametrize("passed", [False, True])
def test_golden_rows_fail_by_a_control_alone(tmp_path: Path, passed: bool):
    missed = (replace(RECORD.controls[0], caught=False),)
    parity = ParityRecord(8, "float32", "float32", 1e-5, 1e-4, passed, missed)
    lying = replace(CERTIFICATE, parity=parity)
    assert lying.failures == ("golden rows: control not caught: B = 0",)
    write_certificate(lying, tmp_path / "identity.json")
    with pytest.raises(BundleError, match="says that it passed, and holds: golden rows: control not caught"):
        read_certificate(tmp_path / "identity.json")


@pytest.mark.parametrize(
    ("certificate", "base", "digest", "said"),
    [
        (CERTIFICATE, replace(BASE, weights="x"), "a" * 64, "the base's weights is another one"),
        (CERTIFICATE, replace(BASE, tokenizer="x"), "a" * 64, "the base's tokenizer is another one"),
        (CERTIFICATE, replace(BASE, template="x"), "a" * 64, "the base's template is another one"),
        (CERTIFICATE, replace(BASE, quantization="nf4"), "a" * 64, "the base's quantization is another one"),
        (CERTIFICATE, BASE, "b" * 64, "digest is bbbbbbbbbbbb, the certificate's is aaaaaaaaaaaa"),
        (replace(CERTIFICATE, passed=False), BASE, "a" * 64, "says that the check failed"),
        (replace(CERTIFICATE, passed=False), BASE, "b" * 64, "is bbbbbbbbbbbb, .* says that the check failed"),
    ],
)
def test_it_covers_nothing_else(certificate: Certificate, base: Fingerprint, digest: str, said: str):
    CERTIFICATE.require(BASE, "a" * 64)
    with pytest.raises(BundleError, match=said):
        certificate.require(base, digest)


def test_failures_name_each_kind():
    record = replace(
        RECORD,
        findings=(FindingRecord("prefix", "conversation 1, row 0, layer 0 K, position 2: 1 element(s) differ"),),
        handovers=(HandoverRecord("conversation 1", 100, 3, None, 1e-4, False),),
        controls=(ControlRecord("B = 0", False, "none"),),
    )
    assert replace(CERTIFICATE, dtypes=(record,)).failures == (
        "float32: prefix check, conversation 1, row 0, layer 0 K, position 2: 1 element(s) differ",
        "float32: handover, conversation 1: 3 element(s) of the cached prefix changed, "
        "the logits are not finite: its training may have diverged (training.learning_rate)",
        "float32: control not caught: B = 0",
    )
    assert CERTIFICATE.failures == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "identity.json cannot be read"),
        ('{"format": 99}', "format is 99, and this alora reads 1"),
        (json.dumps(CERTIFICATE.as_dict() | {"surprise": 1}), "identity.json is damaged"),
        (json.dumps(CERTIFICATE.as_dict() | {"lengths": [[1]]}), "identity.json is damaged"),
    ],
)
def test_damaged_files(text: str | None, said: str, tmp_path: Path):
    path = tmp_path / "identity.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BundleError, match=said):
        read_certificate(path)


BREACHES = {
    "a finding": {"findings": (FindingRecord("prefix", "layer 0 K"),)},
    "a control": {"controls": (replace(RECORD.controls[0], caught=False),)},
    "a handover": {"handovers": (replace(RECORD.handovers[0], passed=False),)},
    "a prefix": {"handovers": (replace(RECORD.handovers[0], prefix_changed=1),)},
    "an error": {"handovers": (replace(RECORD.handovers[0], logits_error=9.0),)},
    "no error": {"handovers": (replace(RECORD.handovers[0], logits_error=None),)},
    "a layer": {"layers": (replace(RECORD.layers[0], prefix_different=1),)},
    "a dtype": {"passed": False},
}
FAILED = ParityRecord(8, "float32", "float32", 1e-5, tolerance=1e-4, passed=False)


@pytest.mark.parametrize("breach", [*BREACHES, "golden rows", "nothing checked"])
@pytest.mark.parametrize("inside", [False, True], ids=["own", "vLLM's"])
def test_one_that_says_that_it_passed_holds_nothing_else(tmp_path: Path, breach: str, inside: bool):
    dtypes = (replace(RECORD, **BREACHES.get(breach, {})),) if breach != "nothing checked" else ()
    lying = replace(CERTIFICATE, dtypes=dtypes, parity=FAILED if breach == "golden rows" else None)
    write_certificate(replace(CERTIFICATE, vllm=lying) if inside else lying, tmp_path / "identity.json")
    with pytest.raises(BundleError, match=r"identity\.json says that it passed, and holds: "):
        read_certificate(tmp_path / "identity.json")
