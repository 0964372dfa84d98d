"""A guard of two toy bundles in folders of their own, changed while it serves."""

import shutil
import time
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from alora.bundle.read import load_bundle
from alora.bundle.write import write_bundle
from alora.data.conversation import parse_conversation
from alora.guard.core import GuardCore
from alora.guard.loading import Loader
from alora.guard.reader import Served
from alora.guard.reading_in_process import PackedReader
from alora.guard.serving_set import ServingSet
from alora.guard.standalone import make_app
from alora.prefix.scorer import Scorer
from alora.verdict import make_verdict
from tests.integration.bundle.conftest import make_base, make_contents
from tests.integration.guard.conftest import MESSAGES

ADMIN = {"X-Alora-Admin-Key": "admin"}


@pytest.fixture(scope="module")
def candidates(base, tmp_path_factory):
    """Bundles of one policy with other weights, and one for another base."""
    folder = tmp_path_factory.mktemp("candidates")
    for seed in (7, 8):
        write_bundle(make_contents(base, folder / f"adapter{seed}", "advice", seed), folder / f"v{seed}", 3)
    other = make_base(seed=1)
    write_bundle(make_contents(other, folder / "foreign adapter", "advice", 7), folder / "foreign", 3)
    return folder


@pytest.fixture
def root(bundles, candidates, tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_ADMIN_KEY", "admin")
    for bundle in bundles:
        shutil.copytree(bundle.folder, tmp_path / bundle.folder.name)
    for name in ("v7", "v8", "foreign"):
        shutil.copytree(candidates / name, tmp_path / name)
    return tmp_path


def app_of(base, root):
    bundles = [load_bundle(root / name) for name in ("advice", "refunds")]
    reader = PackedReader(base, bundles)
    guard = GuardCore([Served.of(bundle) for bundle in bundles], bundles[0].renderer(base), reader)
    return make_app(guard, Loader(guard, reader, base, "float32", bundles, ServingSet(root)))


@contextmanager
def running(base, root):
    with TestClient(app_of(base, root)) as client:
        yield client
        settle(client)  # else its scorer may still change the base when the next one is made


@pytest.fixture
def client(base, root):
    with running(base, root) as client:
        yield client


def put(client, bundle, policy="advice", action="block", headers=ADMIN):
    answer = client.put(f"/v1/guard/policies/{policy}", json={"bundle": bundle, "action": action}, headers=headers)
    settle(client)
    return answer


def settle(client):
    """Wait until what was replaced is unloaded: two packed scorers must not change one base at once."""
    while client.app.state.alora_guard._tasks:
        time.sleep(0.001)


def verdicts(client, **fields):
    answer = client.post("/v1/guard", json={"messages": MESSAGES, **fields}).json()
    return {verdict["policy"]: verdict for verdict in answer["verdicts"]}


def probability(base, bundle):
    prefix = bundle.renderer(base).prefix(parse_conversation(MESSAGES, "test"))
    with Scorer(base, [bundle.weights]) as scorer:
        (logits_L,) = scorer.label_logits(prefix, [bundle.suffix])
    return make_verdict(bundle.policy, logits_L.tolist(), bundle.calibration, "").probability
