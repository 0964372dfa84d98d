"""vLLM's certificate goes into a bundle's certificate, and everything else of the bundle stays what it is."""

from dataclasses import replace

import pytest

from alora.bundle.manifest import CERTIFICATE_FILE
from alora.bundle.move import add_vllm_certificate
from alora.bundle.read import load_bundle
from alora.errors import BundleError
from alora.identity.certificate import ControlRecord, ParityRecord, read_certificate
from alora.vllm_plugin.adapter_record import stamp_of

PARITY = ParityRecord(3, "float32", "float32", 1e-6, 1e-3, True, (ControlRecord("adapter silently off", True, "1"),))


@pytest.fixture
def certificate(contents):
    return replace(contents.certificate, engine="vllm 0.32.0", parity=PARITY)


def test_it_is_in_the_certificate_and_the_bundle_loads(folder, certificate):
    own = read_certificate(folder / CERTIFICATE_FILE)
    here = replace(certificate, base_source="/home/a client/base")  # where it was found must not leave
    bundle = add_vllm_certificate(load_bundle(folder), here)
    assert bundle.manifest.certificate.vllm == "vllm 0.32.0"
    kept = read_certificate(folder / CERTIFICATE_FILE)
    assert kept.vllm == replace(certificate, base_source=own.base_source)
    assert replace(kept, vllm=None) == own, "the certificate of the in-process check stays"
    assert kept.vllm.parity == PARITY
    again = add_vllm_certificate(bundle, replace(certificate, engine="vllm 0.33.0"))
    assert again.manifest.certificate.vllm == "vllm 0.33.0"
    assert sorted(file.name for file in folder.parent.iterdir()) == [folder.name], "nothing is left behind"


def test_a_server_does_not_take_the_adapter_for_a_changed_one(folder, certificate):
    """Name, size, inode and time stay; a server reads a file whose links were counted anew, and finds what it knew."""
    before = [of_file[:-1] for of_file in stamp_of(str(folder))]
    add_vllm_certificate(load_bundle(folder), certificate)
    assert [of_file[:-1] for of_file in stamp_of(str(folder))] == before


def test_a_failed_or_foreign_certificate_is_refused_and_changes_nothing(folder, certificate):
    bundle, before = load_bundle(folder), {file.name: file.read_bytes() for file in folder.iterdir()}
    for wrong in (replace(certificate, passed=False), replace(certificate, adapter_digest="0" * 64)):
        with pytest.raises(BundleError, match="does not cover this bundle"):
            add_vllm_certificate(bundle, wrong)
    (folder / ".git").mkdir()
    with pytest.raises(BundleError, match=r"holds '\.git'"):
        add_vllm_certificate(bundle, certificate)
    (folder / ".git").rmdir()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
