"""A small HTTP server that answers as vLLM with alora's plugin does, by the scorer, until a test has it lie."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from alora.activation import last_occurrence
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix, Suffix
from alora.serving.client import RemoteEngine
from alora.serving.engine import ServedAdapter
from alora.weights import ASKED_WEIGHTS

Answer = tuple[int, Any]  # status and body


@dataclass
class Server:
    """What it serves, by name. ``key`` is asked of every request; names in ``unplugged`` run without the plugin."""

    base: LoadedBase
    bundles: dict[str, Bundle]
    url: str = ""
    key: str | None = None
    unplugged: set[str] = field(default_factory=set)
    raw_logprobs: bool = False
    bias: float = 0.0  # of the first label's score
    refusal: str = "the prompt lacks the adapter's invocation tokens"
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: list[str] = field(default_factory=list)  # paths
    sessions: set[str] = field(default_factory=set)  # whose answer was computed here
    at_once: int = 0
    most_at_once: int = 0

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        self.asked.append(path)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self._answer(path, body)
        finally:
            self.at_once -= 1

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in ("base", *self.bundles)]}
        bundle = self.bundles.get(body["model"])
        if path != "/v1/completions" or bundle is None:
            return 404, {"error": f"no {body['model']} at {path}"}
        weights = body.get("vllm_xargs", {}).get(ASKED_WEIGHTS, "0" * 64)
        if len(weights) != 64 and body["model"] not in self.unplugged:
            return 400, {"error": f"{weights} is not the digest of weights"}
        ids = tuple(body["prompt"])
        start = last_occurrence(ids, bundle.suffix.invocation_ids)
        if start is None:
            return (200, {"choices": [{}]}) if body["model"] in self.unplugged else (400, {"error": self.refusal})
        return 200, {"choices": [{"logprobs": {"top_logprobs": [self.top(bundle, ids, start, body)]}}]}

    def top(self, bundle: Bundle, ids: tuple[int, ...], start: int, body: dict[str, Any]) -> dict[str, float]:
        assert (body["max_tokens"], body["return_tokens_as_token_ids"]) == (1, True)
        allowed = tuple(body["allowed_token_ids"])
        suffix = Suffix(ids[start:], bundle.suffix.invocation_ids, allowed)
        with self.lock, Scorer(self.base, [bundle.weights]) as scorer:
            (logits_L,) = scorer.label_logits(Prefix(ids[:start]), [suffix])
        first, *rest = logits_L.tolist()
        found = dict(zip(allowed, torch.tensor([first + self.bias, *rest]).log_softmax(0).tolist(), strict=True))
        first = sorted(found, key=found.__getitem__, reverse=True)[: body["logprobs"]]
        return {f"token_id:{token + self.raw_logprobs}": found[token] for token in first}


@contextmanager
def serving(base: LoadedBase, bundles: list[Bundle]) -> Iterator[Server]:
    """A right server of ``bundles``, which a test may change while it runs."""
    state = Server(base, {ServedAdapter.of(bundle).name: bundle for bundle in bundles})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            session = self.headers.get("x-session-id")
            allowed = state.key is None or self.headers.get("Authorization") == f"Bearer {state.key}"
            status, answer = state.answer(self.path, body) if allowed else (401, {"error": "no key"})
            state.sessions.update({session} if session and status == 200 else ())
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # those that nobody waits for must not compute beside the next test
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def verify(url, bundles, renderer, prefix=None):
    """Verify the server; then its answers after ``prefix``."""

    async def ask():
        remote = RemoteEngine(url, renderer)
        try:
            await remote.verify(bundles)
            return prefix and await remote.label_logits(prefix, bundles)
        finally:
            await remote.close()

    return asyncio.run(ask())
