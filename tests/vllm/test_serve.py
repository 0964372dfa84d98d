"""``alora serve`` with two bundles in stock vLLM, ``alora score`` as its client; the launcher without the plugin."""

import json
import os

import openai
import pytest
import torch

from alora.adapter.folder import save_adapter
from alora.bundle.read import load_battery
from alora.client.engine import ServedAdapter, block_size
from alora.client.plugin import ask_plugin
from alora.prefix.scorer import Scorer
from alora.prompt.render import INVOCATION
from alora.wire.weights import ASKED_WEIGHTS
from tests.forked import run_forked
from tests.peft_reference import random_adapter
from tests.vllm import bundles as store
from tests.vllm.http_server import free_port, fresh, serving

TOLERANCE = 1e-4
WITHOUT_PLUGIN = {"VLLM_PLUGINS": ""}
SMALL = "--enforce-eager,--num-gpu-blocks-override,256,--enable-prompt-tokens-details"


@pytest.fixture(scope="module")
def bundles():
    return load_battery(store.battery())


@pytest.fixture(scope="module")
def renderer(bundles):
    return bundles[0].renderer(store.base())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    port = free_port()
    command = [
        *("-m", "alora", "serve", f"battery={store.battery()}", f"base.source={store.base_folder()}"),
        *(f"serving.port={port}", "serving.max_model_len=512", f"serving.arguments=[{SMALL}]"),
    ]
    with serving(command, port, tmp_path_factory.mktemp("served") / "log", "/v1/guard/health", start=fresh) as running:
        yield running


def in_process(bundles, prefix) -> list[torch.Tensor]:
    with Scorer(store.base(), [bundle.weights for bundle in bundles]) as scorer:
        found = scorer.label_logits(prefix, [bundle.suffix for bundle in bundles])
    return [logits_L.log_softmax(0) for logits_L in found]


def test_the_bundles_are_served_by_policy_and_digest(served, bundles):
    names = {model.id for model in served.client.models.list()}
    assert names == {bundles[0].manifest.base.source, *(ServedAdapter.of(bundle).name for bundle in bundles)}
    assert ServedAdapter.of(bundles[0]).name == f"advice@{bundles[0].weights.digest[:12]}"
    assert "alora plugin active" in served.log.read_text()


def test_score_through_the_command_line(served, bundles, renderer, tmp_path):
    file, text = tmp_path / "conversation.json", "My order never came."
    file.write_text(json.dumps({"messages": [{"role": "user", "content": text}]}))
    arguments = (f"battery={store.battery()}", f"base.source={store.base_folder()}", str(file), "json=true")
    code, output, errors = run_forked("score", *arguments, f"scorer={served.url}", cache=tmp_path)
    assert code == 0, errors
    told = json.loads(output)["verdicts"]
    wanted = in_process(bundles, renderer.prefix(store.conversation(text)))
    for verdict, bundle, logits_L in zip(told, bundles, wanted, strict=True):
        assert verdict["policy"] == bundle.policy.id
        assert verdict["adapter_digest"] == bundle.weights.digest
        here = torch.softmax(logits_L / bundle.calibration.temperature, 0)[0]
        assert verdict["probability"] == pytest.approx(float(here), abs=TOLERANCE)


def test_bundles_answer_a_plain_openai_client(served, bundles, renderer):
    """Completions with token ids, and chat with a bundle's own instruction as the last message: the same prompt."""
    prefix = renderer.prefix(store.conversation("Is it dangerous?"))
    for bundle, wanted in zip(bundles, in_process(bundles, prefix), strict=True):
        name, labels = ServedAdapter.of(bundle).name, list(bundle.suffix.label_token_ids)
        prompt = [*prefix.token_ids, *bundle.suffix.token_ids]
        asked = {"allowed_token_ids": labels, "return_tokens_as_token_ids": True}
        top, _ = served.complete(name, prompt, **asked)
        assert _gap(top, labels, wanted) < TOLERANCE
        messages = [
            {"role": "system", "content": "You review conversations between users and an assistant."},
            {"role": "user", "content": "Conversation:\nUser: Is it dangerous?"},
            {"role": "user", "content": INVOCATION},
        ]
        answer = served.client.chat.completions.create(
            model=name, messages=messages, max_tokens=1, temperature=0, logprobs=True, top_logprobs=2, extra_body=asked
        )
        assert answer.usage.prompt_tokens == len(prompt)
        entries = answer.choices[0].logprobs.content[0].top_logprobs
        assert _gap({entry.token: entry.logprob for entry in entries}, labels, wanted) < TOLERANCE


def _gap(top: dict[str, float], labels: list[int], wanted_L: torch.Tensor) -> float:
    return max(abs(top[f"token_id:{label}"] - float(wanted_L[row])) for row, label in enumerate(labels))


def test_one_prefix_serves_both(served, bundles, renderer):
    prefix = renderer.prefix(store.conversation("A long story, told once. " * 8)).token_ids
    cached = []
    for bundle in bundles:
        _, details = served.complete(ServedAdapter.of(bundle).name, [*prefix, *bundle.suffix.token_ids])
        cached.append(details.cached_tokens)
    assert cached[1] == len(prefix) // block_size() * block_size() > cached[0]


def answer(served, bundle, prefix, **asked) -> list[float]:
    """Log-probabilities over the labels of ``bundle``, by a plain request."""
    labels = list(bundle.suffix.label_token_ids)
    fields = {"allowed_token_ids": labels, "return_tokens_as_token_ids": True} | asked
    top, _ = served.complete(bundle.served_name, [*prefix.token_ids, *bundle.suffix.token_ids], **fields)
    return [top[f"token_id:{label}"] for label in labels]


def test_bundles_come_and_go_while_it_runs(served, bundles, renderer):
    bundle = bundles[1]
    name, prefix = bundle.served_name, renderer.prefix(store.conversation("Hello."))
    assert served.unload(name).status_code == 200
    with pytest.raises(openai.NotFoundError):
        answer(served, bundle, prefix)
    assert served.load(name, str(bundle.folder)).status_code == 200
    wanted = in_process([bundle], prefix)[0].tolist()
    assert answer(served, bundle, prefix) == pytest.approx(wanted, abs=TOLERANCE)


def test_other_weights_than_are_asked_for_give_no_answer(served, bundles, renderer, tmp_path):
    bundle = bundles[1]
    name, prefix = bundle.served_name, renderer.prefix(store.conversation("Hello."))
    asked = {"vllm_xargs": {ASKED_WEIGHTS: bundle.served_weights}}
    other = random_adapter(store.base().model, seed=77, invocation=bundle.suffix.invocation_ids)
    save_adapter(other, tmp_path / "other", "base")
    before = answer(served, bundle, prefix, **asked)
    assert served.load(name, str(tmp_path / "other"), load_inplace=True).status_code == 200
    with pytest.raises(openai.InternalServerError):  # by the engine core, which logs why
        answer(served, bundle, prefix, **asked)
    assert "holds other weights than are asked for" in served.log.read_text()
    assert served.load(name, str(bundle.folder), load_inplace=True).status_code == 200
    assert answer(served, bundle, prefix, **asked) == before


def test_a_prompt_without_invocation_is_http_400_and_the_server_lives(served, bundles, renderer):
    name = ServedAdapter.of(bundles[0]).name
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        served.complete(name, renderer.prefix(store.conversation("Hello.")).token_ids)
    answer(served, bundles[0], renderer.prefix(store.conversation("Hello.")))


def test_the_launcher_starts_nothing_without_the_plugin(tmp_path, monkeypatch):
    for name, value in WITHOUT_PLUGIN.items():
        monkeypatch.setenv(name, value)
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
