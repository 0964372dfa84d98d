"""A scripted model that writes pairs and votes, and ``alora generate`` on it."""

import json
import random
from pathlib import Path

from alora.cli import main
from tests.unit.llm.endpoint import completion, endpoint

POLICY = "id: no_refunds\ntitle: No refund promises\nrule: The assistant must not promise money back.\n"
WORDS = ("parcel", "chair", "lamp", "kettle", "red", "blue", "late", "broken", "Monday", "Friday", "please", "sorry")


def asks_for(body) -> str:
    words = body["messages"][-1]["content"]
    return "vote" if "<conversation>" in words else "cases" if "minimal pair" in words else "dimensions"


def pair(body, *turns: str) -> object:
    """A pair whose user says something of its own each time."""
    draw = random.Random(body["messages"][-1]["content"])
    talk = " ".join(draw.choices(WORDS, k=25))
    bad, good = turns or ("You get your money back.", "I ask the team about it.")
    said = [[{"role": "user", "content": talk}, {"role": "assistant", "content": reply}] for reply in (bad, good)]
    return completion(json.dumps({"violation": said[0], "ok": said[1]}))


def vote(label: str) -> object:
    return completion(json.dumps({"argument": "because", "label": label, "confidence": 90}))


def right(body) -> str:
    return "violation" if "money back." in body["messages"][1]["content"].partition("<conversation>")[2] else "ok"


def honest(number, body):
    asked = asks_for(body)
    if asked == "dimensions":
        return completion('Here they are: {"topic": ["parcel", "chair", "lamp"], "tone": ["calm", "angry"]}')
    return pair(body) if asked == "cases" else vote(right(body))


def command(url: str, *more: str, pairs: int = 12) -> list[str]:
    asked = (f"judge.url={url}", "judge.model=m", "judge.retries=0", "judge.concurrency=1")
    return ["generate", "policy.file=policy.yaml", "output=out", f"generate.pairs={pairs}", *asked, *more]


def generate(behaviour, *more: str, pairs: int = 12) -> tuple[int, int]:
    """The exit code and the number of requests."""
    with endpoint(behaviour) as server:
        return main(command(server.url, *more, pairs=pairs)), len(server.bodies)


def rows(name: str = "train", folder: str = "out") -> list[dict]:
    return [json.loads(line) for line in Path(f"{folder}/{name}.jsonl").read_text().splitlines()]


def report() -> dict:
    return json.loads(Path("out/report.json").read_text())
