"""LiteLLM's proxy and LangChain, unmodified, from their own environment, with the files that docs/guard.md shows."""

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
import yaml
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from scripts.run_docs import ROOT, read_blocks

PAGE_URL = "http://127.0.0.1:8767"
NOWHERE = "http://127.0.0.1:9"
KEY = f"sk-{secrets.token_hex(32)}"  # LiteLLM starts with no weaker one
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MASTER_KEY": KEY,
    "OPENAI_API_KEY": "none",
    "PYTHONPATH": "",
    "HTTP_PROXY": NOWHERE,  # what has no switch of its own
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1",
}
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
ASK = """
import json, sys
def answer(question):
    try:
        return agent.invoke({"messages": [{"role": "user", "content": question}]})["messages"][-1].content
    except openai.OpenAIError as error:
        return type(error).__name__
print(json.dumps([answer(question) for question in sys.argv[1:]]))
"""


@contextlib.contextmanager
def listening(app, **options):
    """The URL at which ``app`` is served until the block ends; ``options`` are uvicorn's."""
    server = uvicorn.Server(uvicorn.Config(app, **{**options, "host": "127.0.0.1", "port": 0, "log_level": "error"}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Model:
    """A scripted chat model behind OpenAI's API, which remembers what it was asked."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        self.replies, self.asked = replies, []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, body: dict[str, Any]) -> Any:
        self.asked.append(body["messages"][-1]["content"])
        reply = self.replies[self.asked[-1]]
        head = {"id": "1", "created": 0, "model": "m", "usage": dict.fromkeys(USAGE, 1)}
        if body.get("stream"):
            return StreamingResponse(_events(head, reply), media_type="text/event-stream")
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
        return head | {"object": "chat.completion", "choices": [choice]}


def _events(head: dict[str, Any], reply: str) -> Iterator[str]:
    """A reply word by word."""
    for word in [*re.findall(r"\S+ ?", reply), None]:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None if word else "stop"}
        yield f"data: {json.dumps(head | {'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def from_page(title: str, guard: str) -> str:
    """A file of docs/guard.md, for a guard at this URL."""
    (text,) = (block.text for block in read_blocks(ROOT / "docs/guard.md") if block.title == title)
    assert PAGE_URL in text
    return text.replace(PAGE_URL, guard)


def program(name: str) -> str:
    file = Path(sys.prefix, "clients", "bin", name)
    assert file.exists(), f"{file} is missing; run: make setup"
    return str(file)


@contextlib.contextmanager
def litellm(config: dict[str, Any], model: str, folder: Path) -> Iterator[openai.OpenAI]:
    """A client of LiteLLM's proxy, whose models are at a URL."""
    (folder / "litellm.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [program("litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, **ENVIRONMENT, "OPENAI_BASE_URL": f"{model}/v1"}
    log, url = folder / "litellm.log", f"http://127.0.0.1:{port}"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=sink, stderr=sink)
    try:
        end = time.monotonic() + 300
        while not _answers(f"{url}/health/liveliness"):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.2)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False


def langchain(guard: str, model: str, folder: Path, questions: Sequence[str]) -> list[str]:
    """What the page's agent answers to each question, or the error that it raises."""
    return json.loads(run_script("agent.py", guard, folder, ASK, *questions, OPENAI_BASE_URL=f"{model}/v1"))


def run_script(title: str, guard: str, folder: Path, more: str = "", *words: str, **environment: str) -> str:
    """What a script of docs/guard.md prints, with ``more`` at its end and ``words`` on its command line."""
    (folder / title).write_text(from_page(title, guard) + more)
    command, environment = [program("python"), title, *words], {**os.environ, **ENVIRONMENT, **environment}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout
