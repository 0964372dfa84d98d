"""Write the battery's labelled conversations: recipes/battery/{train,validation,test}.jsonl, conversation.json.

    python scripts/write_battery_data.py

One file serves six policies: a row's ``labels`` name each policy that somebody has looked at, and hold null for the
others, as labels collected over time do. Every row is made for one policy in turn. Half of those rows break it, the
others come close: the same subject without the fault, or the fault on another subject. What else a conversation does
follows from its turns, which are known, so its label for every policy is right by construction. Test rows are made of
sentence frames, problems, actions and names that no training row holds.
"""

import argparse
import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from alora.base.tiny_talk import KINDS, SEEN, UNSEEN, Talk, fresh_talk, random_acts, write_talk
from alora.base.tiny_words import TOPICS, Topic

Act = tuple[Topic, str]
BY_NAME = {topic.name: topic for topic in TOPICS}
# What breaks each policy: one exchange on this topic (None: any) and of this kind (None: any).
FAULTS: Mapping[str, tuple[Topic | None, str | None]] = {
    "no_medical_advice": (BY_NAME["health"], "advice"),
    "no_legal_advice": (BY_NAME["law"], "advice"),
    "no_money_advice": (BY_NAME["money"], "advice"),
    "no_referral": (None, "referral"),
    "no_question_back": (None, "question"),
    "no_travel_talk": (BY_NAME["travel"], None),
}
SPLITS = {"train": (600, SEEN, 21), "validation": (180, SEEN, 22), "test": (240, UNSEEN, 23)}


def write_acts(policy: str, violation: bool, rng: random.Random) -> list[Act]:
    """One or two acts, of which one breaks ``policy`` if ``violation``; else none does, and one often nearly does."""
    topic, kind = FAULTS[policy]
    while True:
        acts = random_acts(rng, most=2)
        place = rng.randrange(len(acts))
        if violation:
            acts[place] = (topic or rng.choice(TOPICS), kind or rng.choice(KINDS))
        elif topic is not None and kind is not None and rng.random() < 0.7:
            near = [(topic, rng.choice(KINDS)), (rng.choice(TOPICS), kind)]
            acts[place] = rng.choice(near)
        if any(topic in (None, t) and kind in (None, k) for t, k in acts) == violation:
            return acts


def labels_of(talk: Talk, policy: str, rng: random.Random) -> dict[str, str | None]:
    """The labels of ``policy``, of one other policy by chance and of all that the conversation breaks; else null."""
    broken = {name for name, (topic, kind) in FAULTS.items() if talk.has(topic, kind)}
    looked_at = broken | {policy, rng.choice(sorted(FAULTS))}
    return {name: ("violation" if name in broken else "ok") if name in looked_at else None for name in FAULTS}


def write_rows(split: str, seen_before: set[str]) -> list[dict[str, Any]]:
    """The rows of one split, none equal to a row in ``seen_before`` (which grows)."""
    count, wording, seed = SPLITS[split]
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        policy = list(FAULTS)[number % len(FAULTS)]
        acts = write_acts(policy, number // len(FAULTS) % 2 == 0, rng)
        talk = fresh_talk(partial(write_talk, acts, wording, rng), seen_before)
        labels = labels_of(talk, policy, rng)
        rows.append({"id": f"{split}-{number:04d}", "messages": talk.messages(), "labels": labels})
    rng.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "recipes" / "battery")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    seen_before: set[str] = set()
    for split in SPLITS:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in write_rows(split, seen_before)]
        (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    acts = [(BY_NAME["money"], "advice"), (BY_NAME["travel"], "referral")]
    talk = fresh_talk(partial(write_talk, acts, UNSEEN, random.Random(24)), seen_before)
    text = json.dumps({"messages": talk.messages()}, ensure_ascii=False, indent=2)
    (out / "conversation.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
