"""``tracking=wandb``: offline from a killed run to its end, nothing sent; and what happens when it cannot work."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from alora.config.schema import Recipe, TrackingSettings
from alora.errors import MissingDependency
from alora.training.tracking import require_tracking, start_tracking
from tests.forked import AUDIT_LOG, Forked
from tests.toy_recipe import toy_overrides
from tests.unit.config.test_secrets import SECRET, secretive

ROOT = Path(__file__).parents[3]
LOCAL = ("127.0.0.1", "::1", "0.0.0.0", "::", "")
SMALL = ("identity.negative_controls=false", "export.golden_rows=0", "tracking=wandb", "tracking.mode=offline")


def _start(folder, *arguments) -> Forked:
    environment = os.environ | {"ALORA_CACHE": str(folder / "cache"), AUDIT_LOG: str(folder / "audit.log")}
    return Forked(["-m", "alora", "train", *arguments], environment)


def _remotes(process) -> set[str]:
    """Addresses outside this machine that the process or its children are connected to now."""
    found = set()
    for member in [process, *process.children(recursive=True)]:
        try:
            found |= {entry.raddr.ip for entry in member.net_connections() if entry.raddr}
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found - set(LOCAL)


def _watch(started, stop=lambda: False) -> set[str]:
    """Wait for the end, or kill at ``stop``; whom the process and its children spoke to on the way."""
    process, remotes = psutil.Process(started.pid), set()
    while started.poll() is None:
        if stop():
            started.kill()
            break
        remotes |= _remotes(process) if process.is_running() else set()
        time.sleep(0.25)
    return remotes


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory):
    """A battery that is killed behind its first checkpoint and called again."""
    folder = tmp_path_factory.mktemp("wandb")
    overrides = toy_overrides(folder, folder / "run")
    (folder / "policy.yaml").write_text(
        "policies:\n- {id: red, title: No red, rule: No red.}\n- {id: blue, title: No blue, rule: No blue.}\n"
    )
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for row in rows:
            label = row.pop("label")
            row["labels"] = {"red": label, "blue": "ok" if label == "violation" else "violation"}
            del row["policy"]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [*overrides, *SMALL, "policies=[*]"]
    first = _start(folder, *arguments)
    remotes = _watch(first, stop=lambda: any((folder / "run/checkpoints").glob("*/complete.json")))
    first.communicate()
    before = json.loads((folder / "run/tracking/wandb/run.json").read_text())["id"]
    second = _start(folder, *arguments)
    remotes |= _watch(second)
    errors = second.communicate()[1]
    assert second.returncode == 0, errors
    return folder, before, remotes


def test_a_resumed_run_keeps_its_id(killed_and_resumed):
    folder, run_id, _ = killed_and_resumed
    assert len([*(folder / "run/tracking/wandb/wandb").glob("offline-run-*")]) == 2
    assert json.loads((folder / "run/tracking/wandb/run.json").read_text()) == {"id": run_id, "finished": True}


def test_nothing_leaves_the_machine(killed_and_resumed):
    folder, _, remotes = killed_and_resumed
    assert remotes == set()
    spoken = [line for line in (folder / "audit.log").read_text().splitlines() if line.startswith("(")]
    assert [line for line in spoken if not any(f"'{host}'" in line for host in LOCAL)] == []


def test_the_listeners_hear(tmp_path):
    """Negative control: both see a socket that is connected elsewhere (of UDP, so that nothing is sent)."""
    script = (
        f"from tests.forked import write_down_connections; write_down_connections({str(tmp_path / 'log')!r})\n"
        "import socket, time; one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "try: one.connect(('192.0.2.1', 9))\n"
        "except OSError: one.bind(('127.0.0.1', 0)); one.connect(('127.0.0.2', 9))\n"  # a machine without a network
        "time.sleep(1)"
    )
    remotes = _watch(subprocess.Popen([sys.executable, "-c", script], cwd=ROOT))
    assert remotes <= {"192.0.2.1", "127.0.0.2"}
    assert remotes
    assert "192.0.2.1" in (tmp_path / "log").read_text()


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """No account and no server."""
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    return Recipe(name="toy", run_dir=str(tmp_path / "run"), tracking=TrackingSettings(kind="wandb"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # wandb's own sockets and temporary folders
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("key", ["", "0" * 40])
def test_without_login_or_network_the_run_goes_on_without(key, nobody, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")  # seconds
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    notes: list[str] = []
    with start_tracking(nobody, tmp_path, False, notes.append) as tracking:
        tracking.log({"loss": 0.5}, 1)
        assert not tracking.active
    (note,) = notes
    assert "tracking.mode=offline" in note


def test_a_missing_package_is_told_before_the_work(monkeypatch):
    require_tracking(TrackingSettings(kind="none"))
    require_tracking(TrackingSettings(kind="wandb"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_tracking(TrackingSettings(kind="none"))
    with pytest.raises(MissingDependency, match="pip install wandb"):
        require_tracking(TrackingSettings(kind="wandb"))


# Both packages are there to be found, and whoever imports one ends the process.
_BLOCKED = """
import sys
from importlib.machinery import ModuleSpec
class Refuse:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.split(".")[0] in ("wandb", "tensorboard") else None
    def create_module(self, spec):
        sys.exit(f"{spec.name} was imported")
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Refuse())
assert not {"wandb", "tensorboard"} & set(sys.modules)
"""
_TRAIN = "from alora.cli import main\nsys.exit(main(sys.argv[1:]))"


def test_without_tracking_neither_package_is_touched(killed_and_resumed, tmp_path):
    folder = killed_and_resumed[0]
    arguments = [
        f"base.source={folder / 'base'}", f"policy.file={folder / 'policy.yaml'}", "policies=[red]", "name=plain",
        f"data.train={folder / 'train.jsonl'}", f"data.validation={folder / 'test.jsonl'}",
        f"run_dir={tmp_path / 'run'}", "training.max_steps=2", "training.batch_size=4", "training.threads=1",
        "identity.dtypes=[float32]", "identity.negative_controls=false", "export.golden_rows=0",
        "evaluation.bootstrap=0",
    ]  # fmt: skip
    process = Forked(
        ["-c", _BLOCKED + _TRAIN, "train", *arguments], os.environ | {"ALORA_CACHE": str(folder / "cache")}
    )
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "done in" in output
    assert not (tmp_path / "run/tracking").exists()
    heard = Forked(["-c", _BLOCKED + "import wandb"], os.environ)
    assert "wandb was imported" in heard.communicate()[1]  # negative control


def test_no_secret_is_recorded(tmp_path, monkeypatch):
    """Neither from the settings nor from the command line, of which wandb keeps a copy."""
    recipe = secretive()
    recipe.tracking = TrackingSettings(kind="wandb", mode="offline", tags=["a-tag"])
    monkeypatch.setattr(sys, "argv", ["alora train", f"serving.arguments=[--api-key,{SECRET}]"])
    with start_tracking(recipe, tmp_path, False, print) as tracking:
        assert tracking.active
    recorded = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"a-tag" in recorded
    assert SECRET.encode() not in recorded
