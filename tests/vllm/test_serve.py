"""The launcher without the plugin; with it, test_guard.py starts the server."""

import os

from alora.client.plugin import ask_plugin
from tests.forked import run_forked
from tests.vllm import bundles as store


def test_the_launcher_starts_nothing_without_the_plugin(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "")
    code, output, errors = run_forked(
        "serve", f"battery={store.battery()}", f"base.source={store.base_folder()}", cache=tmp_path
    )
    assert code == 1
    assert "would not be active in the server (VLLM_PLUGINS='' keeps it out" in errors
    assert not output
    code, output, _ = run_forked("doctor", cache=tmp_path)
    assert code == 1
    assert "VLLM_PLUGINS='' keeps it out" in output


def test_the_plugin_is_asked_as_vllm_would():
    found = ask_plugin({**os.environ, "VLLM_PLUGINS": "another,plugin"})
    assert not found["active"]
    assert found["entry_point"]
