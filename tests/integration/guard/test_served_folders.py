"""What on-call sees of what is served: folders that are gone or damaged, digests and ages, trouble as a metric."""

import shutil
from datetime import datetime

import pytest

from alora.bundle.read import load_bundle
from alora.guard import exported_metrics as metrics
from alora.guard.reader import Served
from tests.integration.guard.conftest import MESSAGES
from tests.integration.guard.hot import candidates, client, put, root

__all__ = ["candidates", "client", "root"]


def health(client):
    answer = client.get("/v1/guard/health")
    assert answer.status_code == 200
    trouble = answer.json().get("trouble")
    assert metrics.TROUBLE._value.get() == (trouble is not None)
    return trouble or ""


def gone(folder):
    shutil.rmtree(folder)


def another(folder):
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "v8", folder)


@pytest.mark.parametrize("fault", [gone, another])
@pytest.mark.parametrize("action", ["block", "log"])
def test_a_served_folder_that_is_not_what_was_loaded_is_trouble_at_once(client, root, fault, action):
    """It answers on with what it loaded (P1); the control is the folder put back."""
    assert put(client, "v7", action=action).status_code == 200
    assert health(client) == ""
    shutil.copytree(root / "v7", root / "kept")
    fault(root / "v7")
    assert "v7" in health(client)
    assert client.post("/v1/guard", json={"messages": MESSAGES}).json()["complete"] is True
    shutil.rmtree(root / "v7", ignore_errors=True)
    (root / "kept").rename(root / "v7")
    assert health(client) == ""


def test_what_is_served_is_exported_with_its_age_and_what_is_not_any_more_is_0(client, root):
    def exported(name, action="block"):
        served = Served.of(load_bundle(root / name), action)
        return metrics.SERVED.labels("advice", action, served.name, served.manifest.sha256[:12])._value.get()

    def made(name):
        return datetime.fromisoformat(load_bundle(root / name).manifest.created).timestamp()

    assert exported("advice") == made("advice")
    assert put(client, "v7").status_code == 200
    assert (exported("advice"), exported("v7")) == (0, made("v7"))
    assert put(client, "v7", action="flag").status_code == 200
    assert (exported("v7"), exported("v7", "flag")) == (0, made("v7"))
