"""``alora validate`` through the command line: exit codes, the table, and the report file."""

import json
import shutil
from pathlib import Path

import pytest

from alora.adapter.folder import load_adapter
from alora.cli import main
from alora.config.saved import save_recipe
from alora.config.schema import BaseSettings, IdentitySettings, PolicySettings, Recipe
from alora.errors import ConfigError
from alora.identity.certificate import read_certificate
from alora.identity.pytest_plugin import assert_kv_identity
from alora.training.run_folder import RunFolder
from tests.integration.identity.on_disk import POLICY, load, write_adapter_for
from tests.toy_recipe import toy_base_folder

QUICK = IdentitySettings(dtypes=["float32"], conversations=1, negative_controls=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("validate")
    base = load(toy_base_folder(root / "base"))
    return {"base": root / "base"} | {
        kind: write_adapter_for(base, root / kind, kind) for kind in ("alora", "lora", "zero")
    }


def validate(*arguments: str) -> int:
    return main(["validate", "base.device=cpu", *arguments])


def test_an_adapter_that_names_its_base(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = tmp_path / "new" / "report.json"
    both = "identity.dtypes=[float32,bfloat16]"  # the second by itself only where the processor multiplies it
    assert validate(f"artifact={folders['alora']}", f"output={report}", both) == 0
    printed = capsys.readouterr().out
    assert "KV identity holds" in printed
    assert printed.count("caught") == 14
    assert "NOT CAUGHT" not in printed
    certificate = read_certificate(report)
    assert certificate.passed
    assert certificate.engine == "transformers"
    assert certificate.base == load(folders["base"]).fingerprint
    assert [entry.name for entry in report.parent.iterdir()] == ["report.json"]


def test_rows_of_the_users_own_data(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = tmp_path / "test.jsonl"
    messages = [{"role": "user", "content": "When will it arrive?"}, {"role": "assistant", "content": "Tomorrow."}]
    rows.write_text(json.dumps({"messages": messages, "label": "violation"}) + "\n")
    arguments = (f"artifact={folders['alora']}", f"data.test={rows}", "identity.dtypes=[float32]", "json=true")
    policy = (f"policy.id={POLICY.id}", f"policy.title={POLICY.title}", f"policy.rule='{POLICY.rule}'")
    assert validate(*arguments) == 2
    assert "without the policy" in capsys.readouterr().err
    assert validate(*arguments, *policy) == 0
    names = [name for name, _, _ in json.loads(capsys.readouterr().out)["lengths"]]
    assert sorted(names) == ["conversation 1", "left-padded batch", "long prefix", "short prefix"]


def test_a_run_folder_brings_its_base_and_policy(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = Recipe(name="late", policy=PolicySettings(id=POLICY.id, title=POLICY.title, rule=POLICY.rule))
    recipe.base = BaseSettings(source=str(folders["base"]), device="cpu", dtype="float32")
    recipe.run_dir = str(tmp_path / "run")
    fingerprint = load(folders["base"]).fingerprint.as_dict()
    with RunFolder(recipe) as run:
        inputs = {f"base {name}": value for name, value in fingerprint.items()}
        run.claim(inputs | {f"policy {POLICY.id}": repr(POLICY.as_dict())})
    save_recipe(recipe, tmp_path / "run/run.yaml", {"alora": "0"})
    home = tmp_path / "run/policies" / POLICY.id
    shutil.copytree(folders["alora"], home / "adapter")
    made_from = {"policy": POLICY.id, "adapter_digest": load_adapter(home / "adapter").digest}
    (home / "training.json").write_text(json.dumps(made_from))
    assert validate(f"artifact={tmp_path / 'run'}", "identity.dtypes=[float32]") == 0
    assert f"on base {folders['base']}" in capsys.readouterr().out
    assert assert_kv_identity(tmp_path / "run", folders["base"], settings=QUICK).passed
    shutil.copytree(home, home.with_name("second"))
    with pytest.raises(ConfigError, match="holds 2 policies; name the folder of one, such as"):
        assert_kv_identity(tmp_path / "run", folders["base"], settings=QUICK)
