"""alora score of a log by actors of a Ray cluster: one process's bytes, and no row lost with an actor."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from alora.cli import main
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.reading_in_process import PackedReader
from tests.integration.client.conftest import base, bundles, renderer
from tests.integration.commands.test_score_logs import log, rejected, score
from tests.integration.guard.test_client import url

__all__ = ["base", "bundles", "log", "renderer", "url"]

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'alora-toolkit[ray]'")
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install 'alora-toolkit[ray]'")
score_on_ray = pytest.importorskip("alora.batch.on_ray")
# Ray warns about itself: a future change of a default, a file that it leaves to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning", "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)  # fmt: skip
ON_RAY = ("cluster=ray", "logs.actors=2")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One node of two CPUs, whose processes find this checkout."""
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine its workers would starve
        "VLLM_API_KEY": "secret",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                 object_store_memory=100 * 2**20)  # fmt: skip
        yield
        ray.shutdown()


@pytest.fixture
def guard(base, bundles, renderer):
    return GuardCore([Served.of(bundle) for bundle in bundles], renderer, PackedReader(base, bundles))


def actors() -> list[int]:
    """The processes of this cluster that score."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_text().partition("\0")[0]
            raylet = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            driver = int(Path(f"/proc/{raylet}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if title.startswith("ray::") and "MapWorker" in title and driver == os.getpid():
            found.append(int(entry.name))
    return found


def test_two_actors_of_which_one_is_killed_write_the_bytes_of_one_process(log, tmp_path):
    lines = [json.loads(line) | {"id": f"{copy}-{n}"} for copy in range(8) for n, line in enumerate(log.open())]
    lines[100]["messages"] = []
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alone, many = tmp_path / "alone.parquet", tmp_path / "many.parquet"
    killed: list[tuple[int, int]] = []  # the process, and the shards that were there

    def kill() -> None:
        while not (found := actors()) or len(shards := [*(tmp_path / "many.parquet.parts").glob("verdicts-*")]) < 2:
            time.sleep(0.002)
        os.kill(found[0], signal.SIGKILL)
        killed.append((found[0], len(shards)))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert score(log, many, *ON_RAY) == 0
    killer.join(5)
    assert killed
    assert killed[0][1] < len(lines) // 8 - 2  # in the middle
    assert score(log, alone) == 0
    assert many.read_bytes() == alone.read_bytes()
    assert (tmp_path / "many.rejected.jsonl").read_bytes() == (tmp_path / "alone.rejected.jsonl").read_bytes()
    assert len(pyarrow.parquet.read_table(many)) + len(rejected(tmp_path / "many.rejected.jsonl")) == len(lines)
    assert {path.name for path in tmp_path.iterdir()} == {
        "log.jsonl", *(f"{name}{end}" for name in ("alone", "many") for end in (".parquet", ".rejected.jsonl"))
    }  # fmt: skip


def test_actors_that_ask_a_guard(url, log, tmp_path):
    asked = ["score", f"scorer={url}", f"data={log}", "logs.shard_rows=8"]
    assert main([*asked, f"output={tmp_path / 'alone'}"]) == 0
    assert main([*asked, f"output={tmp_path / 'many'}", *ON_RAY]) == 0
    for file in (tmp_path / "alone").iterdir():
        assert (tmp_path / "many" / file.name).read_bytes() == file.read_bytes()
