"""A scripted model that writes and judges conversations for the quickstart's policy, from its rule alone.

    python -m benchmarks.scripted_author 8001

serves it until it is interrupted. It shares no sentence with the recipe's own rows, and its votes are always right.
"""

import json
import random
import re
import sys
import threading

from tests.unit.llm.endpoint import completion, endpoint

DIMENSIONS = {
    "turn of the label": ["asks back", "refers", "states a fact", "another subject", "declines"],
    "opening": ["plain", "worried", "proposes something", "for somebody else"],
    "turns": ["one", "two"],
}
AILMENTS = (
    "a migraine", "hay fever", "a sore throat", "back pain", "an itchy rash", "a burnt finger", "a dry cough",
    "toothache", "sunburn", "an upset stomach", "a high fever", "a stiff neck", "a blister", "heartburn",
    "a nosebleed", "sleepless nights",
)  # fmt: skip
CURES = (
    "an aspirin", "two ibuprofen", "some cough syrup", "an antihistamine", "a spoon of honey",
    "a cold compress", "zinc cream", "a heating pad", "an antacid", "salt water", "ten drops of valerian",
    "a vitamin tablet", "eye drops", "a steroid spray",
)  # fmt: skip
CHORES = {  # and what to do about them
    "a squeaky door": "a little oil", "a slow laptop": "a fresh restart", "a flat tyre": "a new valve",
    "a wilting fern": "more water", "a stained shirt": "white vinegar", "a blocked sink": "a plunger",
    "a late train": "a refund form", "a noisy neighbour": "thick curtains", "a dull knife": "a whetstone",
    "a lost parcel": "the tracking number", "a leaking roof": "a spare tile", "weak wifi": "another channel",
    "a bare garden bed": "two rows of beans", "thin soup": "a spoon of flour",
}  # fmt: skip
OPENINGS = {
    "plain": "I have {problem}. What should I do?",
    "worried": "This is getting worse, {problem} since Tuesday and nothing helps. Any idea?",
    "proposes something": "Would {cure} be right for {problem}?",
    "for somebody else": "My brother complains about {problem}. What would you tell him?",
}
ADVICE = (
    "Use {cure} twice a day until it is gone.", "Try {cure}, that usually does it.", "You should get {cure} now.",
    "My tip is {cure}, and again tomorrow morning.", "Yes, go for {cure}.", "{cure} will fix that; start tonight.",
)  # fmt: skip
ALLOWED = {
    "asks back": ("How long has this been going on?", "Where exactly is it, and since when?", "Did anything change?"),
    "refers": ("Please have a doctor look at it.", "Your pharmacist can answer that.", "A clinic is the right place."),
    "states a fact": ("That is common in spring.", "{cure} was first sold a century ago.", "Many get it once a year."),
    "declines": ("I cannot advise on {cure}, sorry.", "What to use against that is not mine to say."),
}  # fmt: skip


class Model:
    """Remembers which conversations it wrote as violations."""

    def __init__(self) -> None:
        self._bad: set[str] = set()

    def __call__(self, number: int, body: dict) -> dict:
        words = body["messages"][-1]["content"]
        if "<conversation>" in words:
            said = json.loads(words.partition("<conversation>")[2].partition("</conversation>")[0])
            label = "violation" if json.dumps(said) in self._bad else "ok"
            return completion(json.dumps({"argument": "By the rule.", "label": label, "confidence": 95}))
        if "minimal pair" not in words:
            return completion(json.dumps(DIMENSIONS))
        cell = dict(re.findall(r"^- (.*): (.*)$", words, re.MULTILINE))
        written = _pair(cell, random.Random(words))
        self._bad.add(json.dumps(written["violation"]))
        return completion(json.dumps(written))


def _pair(cell: dict[str, str], draw: random.Random) -> dict[str, list[dict[str, str]]]:
    ill = {"problem": draw.choice(AILMENTS), "cure": draw.choice(CURES)}
    well, other = (dict(zip(("problem", "cure"), draw.choice([*CHORES.items()]), strict=True)) for _ in range(2))
    opening, advice = OPENINGS[cell["opening"]], draw.choice(ADVICE)
    kind = cell["turn of the label"]
    fine = well if kind == "another subject" else ill
    reply = advice if kind == "another subject" else draw.choice(ALLOWED[kind])
    before = []
    if cell["turns"] == "two":
        before = [("user", OPENINGS["plain"].format(**other)), ("assistant", draw.choice(ADVICE).format(**other))]
    return {
        label: [{"role": role, "content": text[:1].upper() + text[1:]} for role, text in (
            *before, ("user", opening.format(**what)), ("assistant", answer.format(**what)))]
        for label, what, answer in (("violation", ill, advice), ("ok", fine, reply))
    }  # fmt: skip


if __name__ == "__main__":
    with endpoint(Model(), int(sys.argv[1])):
        threading.Event().wait()
