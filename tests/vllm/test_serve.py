"""``alora serve`` with two bundles in stock vLLM, ``alora score`` as its client; and both without the plugin."""

import asyncio
import json
import os
import shutil
from dataclasses import replace

import openai
import pytest
import torch

from alora.adapter.folder import save_adapter
from alora.bundle.read import load_battery
from alora.errors import CheckFailed, ConfigError
from alora.prefix.scorer import Scorer
from alora.prompt.render import INVOCATION
from alora.serving.client import RemoteEngine
from alora.serving.completions import Completions
from alora.serving.engine import ServedAdapter, block_size
from alora.serving.plugin import ask_plugin
from tests.forked import run_forked
from tests.integration.serving.server import verify
from tests.peft_reference import random_adapter
from tests.vllm import bundles as store
from tests.vllm.http_server import free_port, fresh, serving
from tests.vllm.toy_models import edit_config

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
    with serving(command, port, tmp_path_factory.mktemp("served") / "log", start=fresh) as running:
        yield running


@pytest.fixture(scope="module")
def unplugged(bundles, tmp_path_factory):
    """Stock vLLM that runs an aLoRA as plain LoRA, under the name that our client asks for."""
    folder = tmp_path_factory.mktemp("unplugged")
    shutil.copytree(bundles[0].folder, folder / "stripped")
    (folder / "stripped" / "alora.json").unlink()
    edit_config(str(folder / "stripped"), alora_invocation_tokens=None)
    port = free_port()
    command = [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", str(store.base_folder())),
        *("--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--block-size", str(block_size())),
        *("--max-model-len", "512", "--enable-lora", "--max-loras", "2", *SMALL.split(",")),
        *("--lora-modules", f"{ServedAdapter.of(bundles[0]).name}={folder / 'stripped'}"),
    ]
    with serving(command, port, folder / "log", **WITHOUT_PLUGIN) as running:
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


def test_the_client_gives_the_scorers_answers(served, bundles, renderer):
    words = "\n".join(bundles[0].policy.answers)  # what a repetition penalty would act on
    prefix = renderer.prefix(store.conversation("Give me a refund, please. " * 6 + words))
    assert {*bundles[0].suffix.label_token_ids} & {*prefix.token_ids}
    found = verify(served.url, bundles, renderer, prefix)
    wanted, base = in_process(bundles, prefix), in_process([_inert(bundle) for bundle in bundles], prefix)
    for here, there, without in zip(wanted, found, base, strict=True):
        assert float((here - torch.tensor(there)).abs().max()) < TOLERANCE
        assert float((here - without).abs().max()) > 100 * TOLERANCE, "the adapter matters"


def _inert(bundle):
    zero = {name: (a, torch.zeros_like(b)) for name, (a, b) in bundle.weights.tensors.items()}
    return replace(bundle, weights=replace(bundle.weights, tensors=zero))


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


def test_bundles_come_and_go_while_it_runs(served, bundles, renderer):
    bundle = bundles[1]
    name, prefix = ServedAdapter.of(bundle).name, renderer.prefix(store.conversation("Hello."))
    assert served.unload(name).status_code == 200
    with pytest.raises(openai.NotFoundError):
        served.complete(name, bundle.suffix.token_ids)
    with pytest.raises(ConfigError, match=f"not {name}; start it with alora serve"):
        verify(served.url, bundles, renderer)
    assert served.load(name, str(bundle.folder)).status_code == 200
    (found,) = verify(served.url, [bundle], renderer, prefix)
    assert found == pytest.approx(in_process([bundle], prefix)[0].tolist(), abs=TOLERANCE)


def test_other_weights_under_a_verified_name_give_no_verdict(served, bundles, renderer, tmp_path):
    bundle = bundles[1]
    name, prefix = bundle.served_name, renderer.prefix(store.conversation("Hello."))
    other = random_adapter(store.base().model, seed=77, invocation=bundle.suffix.invocation_ids)
    save_adapter(other, tmp_path / "other", "base")

    async def swap():
        engine = RemoteEngine(served.url, renderer)
        try:
            before, _ = await engine.ask(prefix, bundle)
            assert served.load(name, str(tmp_path / "other"), load_inplace=True).status_code == 200
            with pytest.raises(ConfigError, match="answered 500"):  # by the engine core, which logs why
                await engine.ask(prefix, bundle)
            with pytest.raises(CheckFailed, match="answers a golden row"):  # when it is verified anew
                await engine.ask(prefix, bundle)
            assert "holds other weights than are asked for" in served.log.read_text()
            assert served.load(name, str(bundle.folder), load_inplace=True).status_code == 200
            assert (await engine.ask(prefix, bundle))[0] == before
        finally:
            await engine.close()

    asyncio.run(swap())


def test_a_prompt_without_invocation_is_http_400_and_the_server_lives(served, bundles, renderer):
    name = ServedAdapter.of(bundles[0]).name
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        served.complete(name, renderer.prefix(store.conversation("Hello.")).token_ids)
    verify(served.url, bundles, renderer)


def test_another_base_or_adapter_behind_the_name_is_found(served, bundles, renderer):
    row = bundles[0].golden[0]
    swapped = replace(row, label_logits=tuple(logit + 3.0 * at for at, logit in enumerate(row.label_logits)))
    with pytest.raises(CheckFailed, match="answers a golden row"):
        verify(served.url, [replace(bundles[0], golden=(swapped,))], renderer)


def test_the_client_refuses_a_server_without_the_plugin(unplugged, bundles, renderer):
    with pytest.raises(CheckFailed, match="plugin is not active there"):
        verify(unplugged.url, bundles[:1], renderer)
    prefix = renderer.prefix(store.conversation("Hello."))
    with pytest.raises(CheckFailed, match="processed_logprobs"):
        asyncio.run(Completions(unplugged.url).ask_unverified(prefix, bundles[0].suffix, bundles[0].served_name))


def test_whatever_stock_vllm_does_with_an_alora_the_client_refuses(unplugged, bundles, renderer):
    """Newer ones refuse to load it, older ones load it as plain LoRA."""
    name = ServedAdapter.of(bundles[1]).name
    loaded = unplugged.load(name, str(bundles[1].folder)).status_code == 200
    with pytest.raises(CheckFailed if loaded else ConfigError, match=name if not loaded else "plugin is not active"):
        verify(unplugged.url, bundles[1:], renderer)


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


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9/v1/"])
def test_no_server_there(bundles, renderer, url):
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9/v1/models does not answer .* alora serve"):
        verify(url, bundles, renderer)
