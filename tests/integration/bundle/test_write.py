"""A bundle is written whole or not at all, and PEFT reads it as it is."""

import copy
import json
import os
import re
import shutil
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel

from alora.activation import peft_offset
from alora.bundle import write
from alora.bundle.golden import write_golden
from alora.bundle.manifest import manifest_from_dict
from alora.bundle.read import check_golden, load_bundle
from alora.bundle.write import BundleContents, copy_bundle, write_bundle
from alora.config.schema import EvaluationSettings
from alora.data.probes import probe_conversations
from alora.errors import BundleError, CheckFailed
from alora.evaluation.predict import Predictions
from alora.evaluation.tables import evaluate
from alora.prompt.render import Renderer
from tests.forked import Forked, kill_when
from tests.integration.bundle.conftest import POINT, POLICIES, PROMPT, make_adapter, make_base, make_contents


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_and_round_trip(contents, folder, base):
    files = ["README.md", "adapter_config.json", "adapter_model.safetensors", "alora.json", "golden.jsonl"]
    assert names(folder) == [*files, "identity.json"]
    assert names(folder.parent) == ["advice"]
    bundle = load_bundle(folder)
    assert bundle.policy == contents.policy
    assert bundle.weights.digest == contents.weights.digest
    assert bundle.calibration == POINT
    assert bundle.manifest.operating_point == POINT
    assert bundle.manifest.prompt == PROMPT
    assert bundle.suffix == Renderer(base.tokenizer, PROMPT).suffix(contents.policy)
    assert bundle.manifest.base.fingerprint == base.fingerprint
    assert bundle.manifest.certificate.passed
    assert manifest_from_dict(bundle.manifest.as_dict(), "memory") == bundle.manifest
    assert set(bundle.manifest.files) == set(names(folder)) - {"alora.json"}
    bundle.check_base(base)
    assert check_golden(bundle, base, 1e-5) <= 1e-5


def test_what_it_was_made_with_is_what_it_is_asked_with(base, tmp_path):
    """Template settings, revision and dtype of the base come back, and so do counts and every evaluation."""
    base = replace(base, model=copy.deepcopy(base.model).to(torch.float64))
    kwargs = {"enable_thinking": False}
    suffix = Renderer(base.tokenizer, PROMPT, kwargs).suffix(POLICIES["advice"])
    assert suffix != Renderer(base.tokenizer, PROMPT).suffix(POLICIES["advice"])
    row = Predictions(POLICIES["advice"], np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1]))
    told = tuple(evaluate(row, POINT, EvaluationSettings(bootstrap=0), method=method) for method in ("lora", "prompt"))
    made = BundleContents(
        POLICIES["advice"], PROMPT, POINT, kwargs, base=base, weights=make_adapter(base, activated=False)
    )
    made = replace(made, revision="v1", data={"train": {"violation": 3, "ok": 4}}, evaluations=told)
    bundle = write_bundle(made, tmp_path / "lora", golden_rows=1)
    assert (bundle.suffix, bundle.renderer(base).suffix(bundle.policy)) == (suffix, suffix)
    assert (bundle.manifest.base.revision, bundle.manifest.base.dtype) == ("v1", "float64")
    assert (bundle.manifest.template_kwargs, bundle.manifest.data) == (kwargs, made.data)
    assert bundle.manifest.evaluations == told


def test_peft_loads_it_and_gives_the_golden_logits(folder, base):
    bundle = load_bundle(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted = PeftModel.from_pretrained(copy.deepcopy(base.model), str(folder)).eval()
    renderer = bundle.renderer(base)
    for row in bundle.golden:
        prompt = renderer.prompt(row.conversation, bundle.policy)
        offset = peft_offset(len(prompt.token_ids), prompt.activation_index)
        with torch.no_grad():
            logits = adapted(torch.tensor([prompt.token_ids]), alora_offsets=[offset]).logits[0, -1]
        assert logits[list(bundle.suffix.label_token_ids)].tolist() == pytest.approx(row.label_logits, abs=2e-5)
    with torch.no_grad():
        bare = base.model(torch.tensor([prompt.token_ids])).logits[0, -1, list(bundle.suffix.label_token_ids)]
    assert bare.tolist() != pytest.approx(row.label_logits, abs=1e-2)


def test_golden_rows_are_probes_and_may_be_left_out(contents, tmp_path, base):
    bundle = write_bundle(contents, tmp_path / "none", golden_rows=0)
    assert bundle.golden == ()
    assert "golden.jsonl" not in names(bundle.folder)
    bundle.check_base(base)
    with_all = write_bundle(contents, tmp_path / "all", golden_rows=12)
    assert [row.conversation for row in with_all.golden] == list(probe_conversations(12, "export.golden_rows"))
    assert len({row.label_logits for row in with_all.golden}) == 12


def test_an_adapter_without_a_passed_certificate_is_refused(contents, tmp_path):
    failed = replace(contents.certificate, passed=False)
    with pytest.raises(CheckFailed, match="failed the KV identity check"):
        write_bundle(replace(contents, certificate=failed), tmp_path / "b")
    other = make_adapter(contents.base, seed=5)
    with pytest.raises(BundleError, match="does not cover this bundle"):
        write_bundle(replace(contents, weights=other), tmp_path / "b")
    elsewhere = make_base(seed=1)
    with pytest.raises(BundleError, match="the base's weights is another one"):
        write_bundle(replace(contents, base=elsewhere), tmp_path / "b")
    assert names(tmp_path) == []


def test_a_plain_lora_needs_none_and_is_marked(base, tmp_path):
    lora = make_adapter(base, activated=False)
    bundle = write_bundle(
        BundleContents(POLICIES["advice"], PROMPT, base=base, weights=lora), tmp_path / "lora", golden_rows=2
    )
    assert not bundle.manifest.activated
    assert bundle.manifest.certificate is None
    assert json.loads((bundle.folder / "adapter_config.json").read_text())["alora_invocation_tokens"] is None
    assert check_golden(bundle, base, 1e-5) <= 1e-5
    card = (bundle.folder / "README.md").read_text()
    assert "standard LoRA" in card
    assert "Not certified" in card
    assert "\n- lora\n" in card
    assert "activated-lora" not in card


def test_an_existing_bundle_is_replaced_only_by_a_whole_one(contents, folder, tmp_path, monkeypatch):
    before = (folder / "alora.json").read_bytes()
    newer = replace(contents, operating_point=replace(POINT, threshold=0.9))
    monkeypatch.setattr(write, "RELOAD_TOLERANCE", -1.0)  # no reload can satisfy this
    with pytest.raises(CheckFailed, match="differ by"):
        write_bundle(newer, folder)
    assert (folder / "alora.json").read_bytes() == before
    assert names(tmp_path) == ["advice"]
    monkeypatch.undo()
    assert write_bundle(newer, folder).calibration.threshold == 0.9
    assert names(tmp_path) == ["advice"]


def test_what_is_on_disk_is_checked_with_and_without_golden_rows(contents, tmp_path, monkeypatch):
    measured = write._measure

    def wrong_answers(contents, probes):
        return tuple(replace(row, label_logits=(0.0, 9.0)) for row in measured(contents, probes))

    with monkeypatch.context() as patch:
        patch.setattr(write, "_measure", wrong_answers)
        with pytest.raises(CheckFailed, match="differ by"):
            write_bundle(contents, tmp_path / "b", golden_rows=0)
    monkeypatch.setattr(write, "write_golden", lambda file, rows: write_golden(file, rows[:1]))
    with pytest.raises(CheckFailed, match="golden rows read back from disk are not those"):
        write_bundle(contents, tmp_path / "b", golden_rows=2)
    assert names(tmp_path) == []


def test_a_copy_is_checked_before_it_replaces_anything(folder, tmp_path, monkeypatch):
    copy_bundle(folder, tmp_path / "copy")
    before = {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()}
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: target.write_bytes(source.read_bytes()[:-1]))
    with pytest.raises(BundleError):
        copy_bundle(folder, tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()} == before
    assert names(tmp_path) == ["advice", "copy"]


def test_what_is_no_bundle_is_never_replaced(contents, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("years of work")
    for manifest in (None, '{"activated": true}', '{"schema_version": 1, "adapter_digest": ""}'):
        if manifest is not None:
            (mine / "alora.json").write_text(manifest)
        for place in (mine, mine / "README.md"):
            with pytest.raises(BundleError):
                write_bundle(contents, place)
    assert (mine / "README.md").read_text() == "years of work"


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from alora.bundle.write import write_bundle
from tests.integration.bundle.conftest import POINT, make_base, make_contents

folder = Path(sys.argv[1])
contents = make_contents(make_base(), folder.parent / "adapter")
for turn in range(10**6):
    point = replace(POINT, threshold=(0.1, 0.9)[turn % 2])
    write_bundle(replace(contents, operating_point=point), folder, golden_rows=1)
    (folder.parent / ".turns").open("a").write(".")
"""


def test_killed_while_writing_leaves_a_whole_bundle(tmp_path):
    folder = tmp_path / "advice"
    turns = tmp_path / ".turns"

    def inside_the_fourth() -> bool:
        if not turns.exists() or turns.stat().st_size < 3:
            return False
        time.sleep(0.05)
        return True

    kill_when(Forked(["-c", WRITER, str(folder)], os.environ), inside_the_fourth)
    assert load_bundle(folder).calibration.threshold in (0.1, 0.9)
    assert {name for name in names(tmp_path) if not name.startswith(".")} == {"adapter", "advice"}


def test_prompt_settings_of_another_run_are_refused(contents, tmp_path):
    spec = replace(contents.weights.spec, invocation_ids=(3, 4))
    weights = replace(contents.weights, spec=spec)
    certificate = replace(contents.certificate, adapter_digest=weights.digest)
    with pytest.raises(BundleError, match=r"invoked by the tokens \[3, 4\]"):
        write_bundle(replace(contents, weights=weights, certificate=certificate), tmp_path / "b")
    assert names(tmp_path) == []


def test_nothing_in_it_names_this_machine(tmp_path):
    shutil.copytree(__file__.rsplit("/", 1)[0], tmp_path / "a base folder")
    base = make_base(source=str(tmp_path / "a base folder"))
    bundle = write_bundle(make_contents(base, tmp_path / "adapter"), tmp_path / "bundle", golden_rows=1)
    for file in bundle.folder.iterdir():
        text = file.read_bytes().decode("utf-8", "replace")
        assert str(tmp_path) not in text, file.name
        assert not re.search(r"/(home|root|tmp|work|Users)/", text), file.name
    assert bundle.manifest.base.source == "a base folder"
    assert bundle.manifest.base.local
    card = (bundle.folder / "README.md").read_text()
    assert "base_model:" not in card
    assert "conversation.json base.source=FOLDER_OF_THE_BASE\n" in card


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_not_replaced_by_a_bundle(contents, tmp_path, dangling):
    target, link = tmp_path / "target", tmp_path / "link"
    made = write_bundle(contents, target, golden_rows=0)
    link.symlink_to(tmp_path / "nowhere" if dangling else target)
    for put in (lambda: write_bundle(contents, link, golden_rows=0), lambda: copy_bundle(made.folder, link)):
        with pytest.raises(BundleError, match="link is a link, which a folder would replace"):
            put()
    assert link.is_symlink()
