"""Whether a bundle belongs to its base, by its prompts and its certificate."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from alora.adapter import CONFIG_FILE, WEIGHTS_FILE
from alora.base.fingerprint import Fingerprint
from alora.bundle.golden import GoldenRow, prefix_digest
from alora.bundle.light import Bundle, _require_certificate, _require_files
from alora.bundle.manifest import CERTIFICATE_FILE, CertificateRecord
from alora.errors import BundleError
from alora.identity.certificate import Certificate, DtypeRecord, Environment, write_certificate
from alora.prompt.parts import Prefix
from alora.received import FileRecord, Folder, file_record
from tests.unit.bundle.cases import BASE, bundle, manifest


def test_every_golden_row_counts(tmp_path, monkeypatch):
    made = bundle(tmp_path)
    renderer = SimpleNamespace(suffix=lambda policy: made.suffix, prefix=lambda row: Prefix((int(row.id), 9)))
    monkeypatch.setattr(Bundle, "renderer", lambda self, base: renderer)
    rows = [GoldenRow(str(n), (), prefix_digest(Prefix((n, 9))), (0.0, 1.0)) for n in range(3)]
    replace(made, golden=tuple(rows)).check_prompts(SimpleNamespace())  # pyright: ignore[reportArgumentType]
    for place in range(3):
        changed = [replace(row, prefix_sha256="0" * 64) if n == place else row for n, row in enumerate(rows)]
        with pytest.raises(BundleError, match="which rendered prompts in another way"):
            replace(made, golden=tuple(changed)).check_prompts(SimpleNamespace())  # pyright: ignore[reportArgumentType]


def certificate_file(folder, base: Fingerprint):
    environment = Environment(*["1"] * 7, threads=1, attention="sdpa")
    whole = DtypeRecord("float32", True, (), (), (), ())
    made = manifest()
    certificate = Certificate(
        True,
        "transformers",
        "2026-01-01",
        "toy",
        base,
        made.adapter_digest,
        (5,),
        ("q_proj",),
        environment,
        (),
        (whole,),
    )
    write_certificate(certificate, folder / CERTIFICATE_FILE)
    record = file_record(folder / CERTIFICATE_FILE)
    passed = CertificateRecord(record.sha256, True, "2026-01-01", ("float32",))
    return replace(made, files={CERTIFICATE_FILE: record}, certificate=passed)


def test_a_certificate_of_another_base_is_refused(tmp_path):
    _require_certificate(tmp_path, certificate_file(tmp_path, BASE.fingerprint))
    for name in ("weights", "tokenizer", "template", "quantization", "config"):
        with pytest.raises(BundleError, match=f"the base's {name} is another one"):
            _require_certificate(tmp_path, certificate_file(tmp_path, replace(BASE.fingerprint, **{name: "other"})))


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, CERTIFICATE_FILE])
def test_what_decides_the_answers_must_be_listed_for_its_digest_to_be_compared(name, tmp_path):
    made, whole = certificate_file(tmp_path, BASE.fingerprint), FileRecord(1, "0" * 64)
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        (tmp_path / file).write_text("{}")
    files = dict.fromkeys((CONFIG_FILE, WEIGHTS_FILE, CERTIFICATE_FILE), whole)
    _require_files(Folder(tmp_path, BundleError, ""), replace(made, files=files))
    with pytest.raises(BundleError, match=f"does not list {name}"):
        _require_files(
            Folder(tmp_path, BundleError, ""), replace(made, files={file: whole for file in files if file != name})
        )
