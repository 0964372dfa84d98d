"""A received run cannot switch on its base's own Python; whoever runs a verb on it can."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from alora.cli import main

OWN_CODE = """\
from pathlib import Path
from transformers import Qwen3Config
class Own(Qwen3Config):
    pass
Path({marker!r}).touch()
"""


@pytest.fixture
def received(place, here, monkeypatch) -> Path:
    """A run without a bundle whose base brings Python, and whose ``run.yaml`` trusts it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(here / "modules"))
    shutil.copytree(place / "base", here / "base")
    (here / "base/own.py").write_text(OWN_CODE.format(marker=str(here / "RAN")))
    config = json.loads((here / "base/config.json").read_text())
    (here / "base/config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.Own"}}))
    shutil.copytree(place / "run", here / "run", ignore=shutil.ignore_patterns("battery", "bundle"))
    settings = yaml.safe_load((here / "run/run.yaml").read_text())
    settings["base"] |= {"source": str(here / "base"), "trust_remote_code": True}
    (here / "run/run.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return here / "run"


@pytest.mark.parametrize("more", [["validate"], ["evaluate"], ["export", "output=out"]], ids=lambda more: more[0])
def test_a_run_does_not_trust_its_own_base(received, here, capsys, more):
    main([*more, f"artifact={received}"])
    errors = capsys.readouterr().err
    assert not (here / "RAN").exists()
    assert "internal error" not in errors


def test_the_command_line_can(received, here):
    """The control: the base's Python is there, and runs when it is asked for."""
    main(["validate", f"artifact={received}", "base.trust_remote_code=true"])
    assert (here / "RAN").exists()


def test_a_run_reloaded_as_settings_does_not(received, here, capsys):
    assert main(["check", f"recipe={received}/run.yaml"]) == 2
    assert "base.trust_remote_code is taken from the command line alone" in capsys.readouterr().err
    assert not (here / "RAN").exists()
