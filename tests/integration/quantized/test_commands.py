"""``base.quantization=nf4`` through the command line: trained, certified, scored, refused on the unquantized base."""

import json
import shutil

import pytest

from tests.forked import run_forked
from tests.toy_recipe import toy_overrides


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qlora")
    overrides = toy_overrides(folder, folder / "run")
    code, output, errors = run_forked("train", *overrides, "base.quantization=nf4", cache=folder / "cache")
    assert code == 0, errors
    assert "7 of 7 negative controls caught" in output
    return folder


def test_the_certificate_and_the_bundle_name_the_base(trained):
    certificate = json.loads((trained / "run/policies/toy/identity.json").read_text())
    assert certificate["base"]["quantization"] == "nf4"
    assert "blocks of 64" in certificate["base"]["quantization_settings"]
    assert "certified in its own dtype only" in certificate["notes"][0]
    manifest = json.loads((trained / "run/bundle/alora.json").read_text())
    assert manifest["base"]["fingerprint"] == certificate["base"]
    assert "nf4 (bitsandbytes, blocks of 64" in (trained / "run/bundle/README.md").read_text()


def test_it_scores_on_nf4_and_on_nothing_else(trained, tmp_path):
    conversation = tmp_path / "conversation.json"
    conversation.write_text(json.dumps({"messages": [{"role": "user", "content": "message 3 says red"}]}))
    bundle = shutil.copytree(trained / "run/bundle", tmp_path / "bundle")
    asked = [f"artifact={bundle}", str(conversation), f"base.source={trained / 'base'}"]
    code, output, errors = run_forked("score", *asked, "json=true", cache=trained / "cache")
    assert code == 0, errors
    assert json.loads(output)["verdicts"][0]["policy"] == "toy"
    code, _, errors = run_forked("score", *asked, "base.quantization=none", cache=trained / "cache")
    assert code == 2
    assert "quantized in another way (none)" in errors
    assert "alora recalibrate artifact=DIR base.quantization=none" in errors
