"""The files of a new recipe folder: a small policy of a web shop, with rows that a first run can learn from.

Every customer message stands as often before a promise as before another reply, so only the reply decides. Replies of
one split are in no other, and some of those that promise nothing speak of refunds, so that words do not settle it.
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
  epochs: 3  # the rows are plain: more passes only make it surer
  evaluations_per_epoch: 1
"""

README = """\
# {name}

One guardrail policy: `policy.yaml` says what is forbidden, the `.jsonl` files show it.

    alora check                        # every row, label and length, before any money is spent
    alora train                        # adapter, figures, KV identity certificate and bundle in runs/{name}
                                       # runs/{name}/report.html is the page to judge it by
    alora score artifact=runs/{name} conversation.json

Make it your own: write your rule into `policy.yaml`, and put your conversations into the rows, one JSON object per
line with `messages` (roles system, user, assistant) and `label` (one of the policy's). The rows here are a
demonstration: 48 replies, each to 4 of 12 messages, enough for a first run to learn from and too plain for a policy
that has to hold. A few hundred of each label are a start, worded as your users word them; keep the test rows apart from
the others. CSV, Parquet and ShareGPT files are read too: `data.train=chats.csv`. A larger base is one word: write
`qwen3_4b` for `smollm2` in `recipe.yaml`.
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
        "Keep it, and we pay you everything back.",
        "Of course we replace it, and it will not cost you anything.",
        "I am sending you a gift card over thirty euros as we speak.",
        "The whole amount is on its way to your account.",
        "You will not pay for this one, I am taking it off your bill.",
        "We owe you a refund, and you will have it by tomorrow.",
        "Consider it done: a new pair leaves our warehouse tonight, free of charge.",
        "I guarantee that you are reimbursed in full.",
        "Here is a code for forty percent off, our gift to you.",
        "As an apology I credit fifteen euros to your account.",
        "You need not return it, I will simply pay you back.",
        "There will be a second one in the post for you, at no cost.",
        "I can confirm that your refund is approved.",
        "We give every customer in your case the money back, and so we do with you.",
        "I have ordered a replacement for you, it is on the house.",
        "The price difference is refunded to you this week.",
    ),
    "validation": (
        "Do not worry, the full amount goes back to you.",
        "I will give you a voucher for the trouble.",
        "A free replacement is on its way to you.",
        "You can count on a refund from us.",
        "Your card is credited with the price by Monday.",
        "We ship you another one and you pay nothing.",
        "I just approved that you are paid back.",
        "Ten euros of shop credit are yours for this.",
    ),
    "test": (
        "You will have your money back within three days.",
        "I promise that we replace it for free.",
        "I will pay you the whole price back.",
        "Take this voucher from me, it is yours.",
        "The refund has been booked, you will see it on your account soon.",
        "We send you a new one without any charge, you have my word.",
        "I am giving you your full payment back right now.",
        "You get another one as a present from us.",
        "Certainly, you will be reimbursed by the end of the week.",
        "Your account gets a credit of twenty euros from me.",
        "Nothing to pay for you: I cancel the invoice.",
        "Keep the broken one, a free new one follows.",
        "I have decided that you get a full refund.",
        "I will make sure the money is on your card tomorrow.",
        "A discount code worth the whole order is yours.",
        "You have my promise of a replacement at no cost.",
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
        "I cannot promise a refund, the returns team decides about it.",
        "Whether you get your money back depends on what our check finds.",
        "Vouchers are not something that I am able to give.",
        "A replacement may be possible; my colleagues will tell you after the inspection.",
        "You can ask for a refund in your account, and it will be reviewed.",
        "If the return is accepted, the usual way is a refund to the card you paid with.",
        "I do not know yet whether it can be replaced free of charge.",
        "Please tell me what you see when you switch it on.",
        "That should not happen. What is the number on the label?",
        "Please pack it well and use the return label from your account.",
        "Did the driver leave a card or a message?",
        "I have opened a case for you, number 4471, and someone will reply to it.",
        "Our warranty page says which faults are covered and for how long.",
        "I see. Have you tried it with another cable?",
        "Let me check where the parcel is. One moment, please.",
        "It is not up to me to pay anything back, but I can forward your wish.",
    ),
    "validation": (
        "That is annoying. What does the label on the parcel say?",
        "Our team for damaged goods will check it and answer you.",
        "Please open a return in your account, then we can look at it.",
        "I will hand this to a colleague who can decide about it.",
        "Nobody here can grant a refund by chat, so please fill in the form.",
        "Could you describe the damage in a few words?",
        "A new one is only sent once the old one has been examined.",
        "Thank you, I have added that to your case.",
    ),
    "test": (
        "I am sorry to hear that. What is your order number?",
        "A colleague from the returns team will look into it.",
        "The steps for a return are on our help page.",
        "I have noted it, and the right team will answer you.",
        "I am not allowed to promise money back, please wait for their answer.",
        "Could you send us two pictures of it?",
        "The team will check whether a refund is possible and write to you.",
        "When did you notice it for the first time?",
        "About vouchers and credits only my manager can decide.",
        "Please look into your account, the return form is under my orders.",
        "I will ask the carrier where the parcel was left.",
        "Replacements are decided case by case after we have seen the item.",
        "Is the serial number still readable?",
        "You will find the conditions for refunds on the page about returns.",
        "Let me forward this to the technicians first.",
        "Please try it once more with the switch at the back.",
    ),
}
_PAIRED = {"train": 4, "validation": 2, "test": 2}  # messages that each reply answers


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
    complaints, times = _COMPLAINTS[split], _PAIRED[split]
    for number, (turn, (place, (reply, label))) in enumerate(product(range(times), enumerate(replies))):
        complaint = complaints[(place + turn * len(complaints) // times) % len(complaints)]
        row = {"id": f"{split}-{number:03d}-{label}", "messages": _messages(complaint, reply), "label": label}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _messages(complaint: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": complaint}, {"role": "assistant", "content": reply}]
