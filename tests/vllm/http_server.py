"""A server process and a plain OpenAI client of it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import openai

from tests.forked import Forked
from tests.vllm import toy_engine

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **toy_engine.ENVIRONMENT,
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}


class Server:
    """A running server and its client."""

    def __init__(self, port: int, log: Path, process: Forked | subprocess.Popen[bytes]) -> None:
        self.url, self.log, self.process = f"http://127.0.0.1:{port}", log, process
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def wait(self, seconds: int, health: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}{health}", timeout=2).status_code == 200:
                    return
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-4000:])

    def complete(self, model: str, ids: Sequence[int], **extra):
        answer = self.client.completions.create(
            model=model, prompt=list(ids), max_tokens=1, temperature=0, logprobs=5, extra_body=extra
        )
        return answer.choices[0].logprobs.top_logprobs[0], answer.usage.prompt_tokens_details


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fresh(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """As ``Forked``, from the interpreter's first import on, and so are all processes that it starts."""
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT
        )


@contextlib.contextmanager
def serving(
    command: Sequence[str], port: int, log: Path, health: str = "/health", start: Callable = Forked, **environment: str
) -> Iterator[Server]:
    """Run what follows ``python`` in a command, which listens at ``port``, until the block ends."""
    process = start(command, {**os.environ, **ENVIRONMENT, **environment}, folder=ROOT, log=log)
    running = Server(port, log, process)
    try:
        running.wait(420, health)
        yield running
    finally:
        running.client.close()
        process.terminate()
        process.wait(30)
