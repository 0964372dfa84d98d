"""vLLM's OpenAI server: two adapters at start, others loaded and unloaded while it runs, a plain OpenAI client."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest

from tests.vllm import toy_engine
from tests.vllm.toy_models import BLOCK
from tests.vllm.toys import INVOCATION, filler, prompt

ROOT = Path(__file__).parents[2]


class Server:
    """A running server and its client."""

    def __init__(self, port: int, log: Path, process: subprocess.Popen) -> None:
        self.url, self.log, self.process = f"http://127.0.0.1:{port}", log, process
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def wait(self, seconds: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-4000:])

    def complete(self, model: str, ids: list[int]):
        answer = self.client.completions.create(model=model, prompt=ids, max_tokens=1, temperature=0, logprobs=5)
        return answer.choices[0].logprobs.top_logprobs[0], answer.usage.prompt_tokens_details

    def load(self, name: str, path: str) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path}, timeout=60)

    def unload(self, name: str) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.vllm import toys as store

    toys = store.toys("qwen3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    environment = {
        **os.environ,
        **toy_engine.ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    arguments = [
        *("--served-model-name", "base", "--port", str(port), "--host", "127.0.0.1"),
        *("--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK), "--max-model-len", "1024"),
        *("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "8", "--enable-prompt-tokens-details"),
        *("--num-gpu-blocks-override", "256", "--return-tokens-as-token-ids"),
        *("--lora-modules", f"linear={toys['linear'].path}", f"attention={toys['attention'].path}"),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", toys.base, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        running = Server(port, log, process)
        try:
            running.wait(180)
            yield running
        finally:
            running.client.close()
            process.terminate()
            process.wait(30)


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


def test_one_name_reloaded_with_other_weights_reuses_nothing(server, toys, reference):
    ids = prompt(40, suffix=60, seed=15)
    for name in ("linear", "wide"):
        assert server.load("moving", toys[name].path).status_code == 200
        assert logprob_gap(server, "moving", ids, reference.logprobs_V(ids, toys[name])) < 1e-4
        assert server.unload("moving").status_code == 200


def test_the_log_says_that_the_plugin_is_active(server):
    assert "alora plugin active" in server.log.read_text()
    assert len(INVOCATION) == 3
