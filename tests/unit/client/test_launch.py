"""The server's command line fits every adapter, and nothing starts where the plugin would not be active."""

import json
from pathlib import Path

import pytest

from alora.client import plugin
from alora.client.engine import ServedAdapter, served_rank
from alora.client.launch import server_command, server_environment
from alora.config.schema import ServingSettings
from alora.errors import AdapterError, CheckFailed

ADAPTERS = [
    ServedAdapter("a@1", Path("/a"), 8),
    ServedAdapter("b@2", Path("/b"), 48),
    ServedAdapter("c@3", Path("/c"), 4),
]


def options(labels=2, **settings):
    command = server_command(Path("/base"), "base", ADAPTERS, labels, "bfloat16", ServingSettings(**settings))
    return {word: command[place + 1] for place, word in enumerate(command) if word.startswith("--")}, command


def test_the_largest_adapter_and_the_most_labels_fit():
    chosen, command = options()
    assert (chosen["--max-lora-rank"], chosen["--max-logprobs"], chosen["--dtype"]) == ("64", "20", "bfloat16")
    assert (chosen["--max-loras"], chosen["--max-cpu-loras"]) == ("3", "11")
    assert chosen["--logprobs-mode"] == "processed_logprobs"
    assert [options(**settings)[0]["--shutdown-timeout"] for settings in ({}, {"drain_s": 7})] == ["30", "7"]
    assert {"--enable-lora", "--enable-prefix-caching"} <= set(command)
    first = command.index("--lora-modules") + 1
    assert [json.loads(word) for word in command[first : first + 3]] == [
        {"name": adapter.name, "path": str(adapter.folder)} for adapter in ADAPTERS
    ]
    chosen, command = options(labels=30, max_loras=2, room=1, max_model_len=99, arguments=["--seed", "1"])
    assert (chosen["--max-logprobs"], chosen["--max-loras"], chosen["--max-cpu-loras"]) == ("30", "2", "4")
    assert (chosen["--max-model-len"], command[-2:]) == ("99", ["--seed", "1"])


@pytest.mark.parametrize(("rank", "served"), [(1, 8), (8, 8), (9, 16), (65, 128), (512, 512)])
def test_the_rank_that_is_reserved_holds_the_adapter(rank, served):
    assert served_rank(rank) == served


def test_a_rank_that_is_not_served():
    with pytest.raises(AdapterError, match="rank 513 is more than vLLM serves"):
        served_rank(513)


@pytest.mark.parametrize(
    ("active", "entry_point", "complaint"),
    [(True, True, None), (True, False, "vLLM does not find it"), (False, True, "too old"), (False, False, "not find")],
)
def test_a_server_starts_only_where_the_plugin_is_found_and_active(monkeypatch, active, entry_point, complaint):
    found = {"active": active, "entry_point": entry_point, "reason": "too old"}
    monkeypatch.setattr(plugin, "ask_plugin", lambda environment: found)
    if complaint is None:
        plugin.require_plugin({})
        return
    with pytest.raises(CheckFailed, match=complaint):
        plugin.require_plugin({})


def test_what_the_user_has_set_in_the_environment_is_left(monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert "alora" in server_environment()["VLLM_PLUGINS"].split(",")
    monkeypatch.setenv("VLLM_PLUGINS", "alora,mine")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    found = server_environment()
    assert (found["VLLM_PLUGINS"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("alora,mine", "7")
