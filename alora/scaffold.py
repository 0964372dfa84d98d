"""The files of a new recipe folder: a small policy of a web shop, with rows that a first run can learn from.

Every customer message appears with every reply of its split, so only the reply decides, and no reply of one split
appears in another.
"""

import json
from itertools import product

POLICY = """\
id: no_refund_promises
title: No refund promises
rule: >
  The assistant of the shop must not promise money back, a voucher or a free replacement. It may say how returns work,
  ask for details, or pass the matter on to the team that decides.
labels:  # the first is the positive one; the word, one token in quotes, is what the model answers
  violation: "Yes"
  ok: "No"
"""

RECIPE = """\
# @package _global_
# Every setting: alora train --help. Paths are looked up here first, then in the folder of this file.
defaults:
  - override /base: smollm2  # from the package index; with a GPU or the hub: qwen3_4b, llama3_2_1b, gemma3_1b, ...
  - override /adapter: alora

name: {name}

policy:
  file: policy.yaml

data:
  train: train.jsonl
  validation: validation.jsonl
  test: test.jsonl

training:
  evaluations_per_epoch: 1
"""

README = """\
# {name}

One guardrail policy: `policy.yaml` says what is forbidden, the `.jsonl` files show it.

    alora check                        # every row, label and length, before any money is spent
    alora train                        # adapter, figures, proof of KV identity and bundle in runs/{name}
    alora score artifact=runs/{name} conversation.json

Make it your own: write your rule into `policy.yaml`, and put your conversations into the rows, one JSON object per
line with `messages` (roles system, user, assistant) and `label` (one of the policy's). The rows here are a
demonstration: 12 messages times 16 replies, enough for a first run to learn from and too plain for a policy that has to
hold. A few hundred of each label are a start, worded as your users word them; keep the test rows apart from the others.
CSV, Parquet and ShareGPT files are read too: `data.train=chats.csv`. A larger base is one word: write `qwen3_4b` for
`smollm2` in `recipe.yaml`.
"""

_COMPLAINTS = {
    "train": (
        "The kettle arrived broken. What now?",
        "My order has been late for a week and nobody answers.",
        "The shoes are too small, and I already threw the box away.",
        "You sent me the blue lamp, but I ordered the green one.",
        "The headphones stopped working after two days.",
        "I was charged twice for the same chair.",
        "The tent leaks. It rained on our first night out.",
        "This blender is far louder than your page says.",
        "My parcel says delivered, but there was nothing at the door.",
        "The jacket lost its colour in the first wash.",
        "Half of the screws for the shelf are missing.",
        "The phone case does not fit my phone at all.",
    ),
    "validation": (
        "The vase had a crack when I opened the parcel.",
        "I cancelled the order, and it was sent anyway.",
        "The watch loses ten minutes a day.",
        "One of the four plates came in pieces.",
    ),
    "test": (
        "My new radio makes no sound.",
        "The curtains are shorter than the size on the label.",
        "Someone else's order was in my parcel.",
        "The garden chair gave way on the first evening.",
        "The toy train runs only backwards.",
        "I returned the coat a month ago and have heard nothing.",
        "The mixer smokes when I switch it on.",
        "Two of the books were missing from the parcel.",
    ),
}
_PROMISES = {
    "train": (
        "I will refund you the full price today.",
        "You get your money back, no questions asked.",
        "A voucher over twenty euros is yours, I promise.",
        "We will send you a new one for free tomorrow.",
        "Your money will be back on your card by Friday.",
        "I promise you a full refund for this.",
        "You will get a free replacement, that is certain.",
        "I have refunded you half of the price just now.",
    ),
    "validation": (
        "Do not worry, the full amount goes back to you.",
        "I will give you a voucher for the trouble.",
        "A free replacement is on its way to you.",
        "You can count on a refund from us.",
    ),
    "test": (
        "You will have your money back within three days.",
        "I promise that we replace it for free.",
        "I will pay you the whole price back.",
        "Take this voucher from me, it is yours.",
    ),
}
_NEUTRAL = {
    "train": (
        "I am sorry. Could you send me a photo and the order number?",
        "The returns team will look at it and write to you.",
        "You can start a return in your account under orders.",
        "I have passed this on to the team that decides about such cases.",
        "Which day was it delivered, and by whom?",
        "Returns are open for thirty days; the page on returns has the steps.",
        "I cannot decide that here. A colleague will be in touch.",
        "Thank you for telling us. Let me note the details first.",
    ),
    "validation": (
        "That is annoying. What does the label on the parcel say?",
        "Our team for damaged goods will check it and answer you.",
        "Please open a return in your account, then we can look at it.",
        "I will hand this to a colleague who can decide about it.",
    ),
    "test": (
        "I am sorry to hear that. What is your order number?",
        "A colleague from the returns team will look into it.",
        "The steps for a return are on our help page.",
        "I have noted it, and the right team will answer you.",
    ),
}


def scaffold(name: str) -> dict[str, str]:
    """File name → text of a recipe folder called ``name``."""
    rows = {f"{split}.jsonl": _lines(split) for split in _COMPLAINTS}
    conversation = {"messages": _messages("My new radio makes no sound.", "I will pay you the whole price back.")}
    return {
        "recipe.yaml": RECIPE.format(name=json.dumps(name)),
        "policy.yaml": POLICY,
        **rows,
        "conversation.json": json.dumps(conversation, indent=2) + "\n",
        "README.md": README.format(name=name),
    }


def _lines(split: str) -> str:
    replies = [(reply, "violation") for reply in _PROMISES[split]] + [(reply, "ok") for reply in _NEUTRAL[split]]
    lines = []
    for number, (complaint, (reply, label)) in enumerate(product(_COMPLAINTS[split], replies)):
        row = {"id": f"{split}-{number:03d}-{label}", "messages": _messages(complaint, reply), "label": label}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _messages(complaint: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": complaint}, {"role": "assistant", "content": reply}]
