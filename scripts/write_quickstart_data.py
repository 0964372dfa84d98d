"""Write the quickstart's labelled conversations: recipes/quickstart/{train,validation,test}.jsonl, conversation.json.

    python scripts/write_quickstart_data.py

The policy is broken when one reply advises on a health problem. The rest is made to be mistaken for it: health talk
in which the assistant refers to a doctor, asks back or states a fact (also when the user names a drug), and advice
on anything else. Both labels draw the number of turns, openers, closers and requests from the same pools, so length
tells nothing. Test rows are made of sentence frames, symptoms, drugs and names that no training row holds. The tiny
base has met those words, as any base has, but not the held-out frames, and never the policy.
"""

import argparse
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from alora.base.tiny_talk import KINDS, SEEN, UNSEEN, Talk, Wording, fresh_talk, write_talk
from alora.base.tiny_words import HEALTH, OTHERS, Topic

POLICY = "no_medical_advice"
BROKEN = (HEALTH, "advice")
SPLITS = {"train": (400, SEEN, 11), "validation": (120, SEEN, 12), "test": (200, UNSEEN, 13)}


def write_acts(violation: bool, rng: random.Random) -> list[tuple[Topic, str]]:
    """One to three acts; exactly one or two of them break the policy if ``violation``, else none."""
    acts = [_harmless_act(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if violation:
        for place in rng.sample(range(len(acts)), k=min(len(acts), rng.choice((1, 1, 2)))):
            acts[place] = BROKEN
    return acts


def _harmless_act(rng: random.Random) -> tuple[Topic, str]:
    """Health without advice, advice without health, or neither."""
    draw = rng.random()
    if draw < 0.45:
        return HEALTH, rng.choice([kind for kind in KINDS if kind != "advice"])
    if draw < 0.85:
        return rng.choice(OTHERS), "advice"
    return rng.choice(OTHERS), rng.choice(KINDS)


def write_rows(split: str, seen_before: set[str]) -> list[dict[str, Any]]:
    """Balanced rows of one split, none equal to a row in ``seen_before`` (which grows)."""
    count, wording, seed = SPLITS[split]
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        violation = len(rows) % 2 == 0
        talk = fresh_talk(partial(make_talk, violation, wording, rng), seen_before)
        rows.append(
            {
                "id": f"{POLICY}-{split}-{len(rows):04d}",
                "policy": POLICY,
                "messages": talk.messages(),
                "label": "violation" if violation else "ok",
                "split": split,
            }
        )
    rng.shuffle(rows)
    return rows


def make_talk(violation: bool, wording: Wording, rng: random.Random) -> Talk:
    """One conversation that breaks the policy, or does not."""
    return write_talk(write_acts(violation, rng), wording, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "recipes" / "quickstart")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    seen_before: set[str] = set()
    for split in SPLITS:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in write_rows(split, seen_before)]
        (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    talk = fresh_talk(partial(make_talk, True, UNSEEN, random.Random(14)), seen_before)
    text = json.dumps({"messages": talk.messages()}, ensure_ascii=False, indent=2)
    (out / "conversation.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
