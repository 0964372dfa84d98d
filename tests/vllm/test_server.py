"""vLLM's OpenAI server: two adapters at start, others loaded and unloaded while it runs, a plain OpenAI client."""

import shutil

import httpx
import openai
import pytest

from alora.text import sha256_of
from alora.wire.weights import ASKED_WEIGHTS, weights_digest
from tests.vllm.http_server import Server, free_port, serving
from tests.vllm.toy_models import BLOCK, edit_config
from tests.vllm.toys import filler, prompt


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.vllm import toys as store

    toys = store.toys("qwen3")
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = [
        *("--served-model-name", "base", "--port", str(port), "--host", "127.0.0.1"),
        *("--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK), "--max-model-len", "1024"),
        *("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "8", "--enable-prompt-tokens-details"),
        *("--num-gpu-blocks-override", "256", "--return-tokens-as-token-ids"),
        *("--lora-modules", f"linear={toys['linear'].path}", f"attention={toys['attention'].path}"),
    ]
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", toys.base, *arguments]
    with serving(command, port, log) as running:
        yield running


def logprob_gap(server: Server, model: str, ids: list[int], wanted_V) -> float:
    top, _ = server.complete(model, ids)
    return max(abs(value - float(wanted_V[int(token.split(":")[1])])) for token, value in top.items())


@pytest.mark.parametrize("name", ["linear", "attention"])
def test_completions_over_http_are_pefts(server, toys, reference, name):
    ids = prompt(70, seed=11)
    assert logprob_gap(server, name, ids, reference.logprobs_V(ids, toys[name])) < 1e-4
    assert logprob_gap(server, "base", ids, reference.logprobs_V(ids)) < 1e-4


def test_the_prefix_is_shared_over_http(server):
    ids = prompt(100, seed=12)
    server.complete("base", ids)
    for name in ("linear", "attention"):
        _, details = server.complete(name, ids)
        assert details.cached_tokens == 96


def test_chat_over_http(server, toys, reference):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(toys.base)
    messages = [{"role": "user", "content": "hello there"}, {"role": "user", "content": "##A"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answer = server.client.chat.completions.create(
        model="linear", messages=messages, max_tokens=1, temperature=0, logprobs=True, top_logprobs=3
    )
    wanted_V = reference.logprobs_V(ids, toys["linear"])
    for entry in answer.choices[0].logprobs.content[0].top_logprobs:
        assert abs(entry.logprob - float(wanted_V[int(entry.token.split(":")[1])])) < 1e-4


def test_a_missing_invocation_is_http_400_and_the_server_lives(server, toys, reference):
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        server.complete("linear", filler(40))
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        server.client.chat.completions.create(
            model="linear", messages=[{"role": "user", "content": "hi"}], max_tokens=1
        )
    ids = prompt(40, seed=13)
    assert logprob_gap(server, "linear", ids, reference.logprobs_V(ids, toys["linear"])) < 1e-4


@pytest.mark.parametrize("name", ["wide", "plain"])
def test_adapters_come_and_go_while_it_runs(server, toys, reference, name):
    ids = prompt(50, seed=14)
    assert server.load(name, toys[name].path).status_code == 200
    assert logprob_gap(server, name, ids, reference.logprobs_V(ids, toys[name])) < 1e-4
    assert server.unload(name).status_code == 200
    with pytest.raises(openai.NotFoundError):
        server.complete(name, ids)
    assert logprob_gap(server, "linear", ids, reference.logprobs_V(ids, toys["linear"])) < 1e-4


def test_weights_that_no_adapter_has_are_refused_of_plain_lora_too(server, toys):
    """By this a client sees that the plugin is there, where a prompt without invocation shows nothing."""
    assert server.load("lora", toys["plain"].path).status_code == 200
    for name in ("linear", "lora"):
        with pytest.raises(openai.BadRequestError, match="not the digest of weights"):
            server.complete(name, prompt(40), vllm_xargs={ASKED_WEIGHTS: "none"})
    assert server.unload("lora").status_code == 200


@pytest.fixture
def own(server, toys, tmp_path):
    """A folder from which the server loads an adapter, and what the folder held then."""
    folder = shutil.copytree(toys["linear"].path, tmp_path / "own")
    digest = weights_digest({file.name: sha256_of(file) for file in folder.iterdir() if file.is_file()})
    assert server.load("own", str(folder)).status_code == 200
    yield folder, digest
    assert server.unload("own").status_code == 200


@pytest.mark.parametrize("change", ["trained again", "gone"])
def test_a_prompt_is_held_against_the_weights_that_answer_and_not_against_the_folder(
    server, toys, reference, own, change
):
    folder, digest = own
    if change == "gone":
        shutil.rmtree(folder)
    else:
        edit_config(str(folder), alora_invocation_tokens=[4, 5])
    ids, asked = prompt(40, seed=16), {"vllm_xargs": {ASKED_WEIGHTS: digest}}
    top, _ = server.complete("own", ids, **asked)
    wanted_V = reference.logprobs_V(ids, toys["linear"])
    assert max(abs(value - float(wanted_V[int(token.split(":")[1])])) for token, value in top.items()) < 1e-4
    for wrong in (filler(40), [*filler(40), 4, 5]):
        with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
            server.complete("own", wrong, **asked)
    with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
        server.complete("own", filler(40), **asked, n=3, temperature=1.0)
    if change == "gone":
        with pytest.raises(openai.BadRequestError, match="are not in the prompt"):
            server.complete("own", filler(40))


def test_vllms_own_questions_are_not_answered_in_an_adapters_name(server):
    questions = {"q": {"type": "predicate", "instructions": "Is it rude?"}}
    body = {"model": "linear", "state": "Hi", "questions": questions}
    answer = httpx.post(f"{server.url}/v1/systemone", json=body, timeout=60)
    assert answer.status_code in (400, 501), answer.text  # 501: vLLM answers none on this base


def test_a_stream_without_an_invocation_says_so_and_ends(server):
    with pytest.raises(openai.APIError, match="are not in the prompt"):
        list(server.client.completions.create(model="linear", prompt=filler(40), max_tokens=1, stream=True))
