"""The corpus of the tiny base: conversations in the form of a prompt, then questions on them with their answers.

A plain language-model objective leaves a base of three million parameters useless for classification in the minute it
has. Documents that end by summing themselves up do not: the tokens behind a conversation learn to look back and say
what it was about and what its replies did, which is the skill that an adapter on the suffix steers.

What the base is told, and what not. It is told each turn's topic and kind of reply, as any real base would be able to
tell, and it knows every word of the quickstart's conversations. It is never told the answer to the quickstart's
policy: no question joins the topic health with the kind advice, no policy text occurs, and no held-out sentence frame
does. Policy checks in this corpus ask about greetings and thanks only, so that their form is known.
"""

import random

from alora.base.pretrain import TURN_END, TURN_START
from alora.base.tiny_talk import CORPUS, KINDS, Talk, random_acts, write_exchange, write_talk
from alora.base.tiny_words import HEALTH, OTHERS, TOPICS
from alora.render import HEADING, SYSTEM_TEXT

# The renderer's own wording first and most often, others beside it so that no single wording is needed.
SYSTEMS = (
    *[SYSTEM_TEXT] * 5,
    "You read conversations and answer questions about them.",
    "You are given a conversation between a user and an assistant.",
    "Read the conversation, then follow the instruction.",
    "You are a helpful assistant that checks conversations.",
    "",
)
HEADINGS = (*[HEADING] * 4, "", "The conversation:\n\n", "Read this conversation.\n\n")
QUESTIONS_PER_DOCUMENT = 2
GLOSSARY_SHARE, GLOSSARY_ENTRIES = 0.4, 6

Answered = tuple[str, str]


def documents(count: int, seed: int = 0) -> list[str]:
    """``count`` documents, the same for the same seed."""
    rng = random.Random(seed)
    return [write_document(rng) for _ in range(count)]


def write_document(rng: random.Random) -> str:
    """A conversation with questions, or one time in three a glossary."""
    return write_glossary(rng) if rng.random() < GLOSSARY_SHARE else write_conversation(rng)


def write_glossary(rng: random.Random) -> str:
    """Phrases and single lines with what they are about: the cheapest way to learn what words mean."""
    turns: list[str] = []
    for _ in range(GLOSSARY_ENTRIES):
        topic, kind = random_acts(rng, most=1)[0]
        exchange = write_exchange(topic, kind, CORPUS, rng)
        entry = rng.choice(
            (
                (rng.choice(topic.problems), topic.name),
                (rng.choice(topic.actions), topic.name),
                (rng.choice(topic.experts), topic.name),
                (f"User: {exchange.request}", topic.name),
                (f"Assistant: {exchange.reply}", kind),
            )
        )
        turns += [turn("user", entry[0]), turn("assistant", entry[1])]
    return "".join(turns).rstrip("\n")


def write_conversation(rng: random.Random) -> str:
    """One conversation in a user turn, then question and answer turns."""
    talk = write_talk(random_acts(rng), CORPUS, rng)
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in talk.messages()]
    system = rng.choice(SYSTEMS)
    turns = [turn("system", system)] if system else []
    turns.append(turn("user", rng.choice(HEADINGS) + "\n".join(lines)))
    for question, answer in ask(talk, rng):
        turns += [turn("user", question), turn("assistant", answer)]
    return "".join(turns).rstrip("\n")


def turn(role: str, content: str) -> str:
    """One ChatML turn, as the base's chat template writes it."""
    return f"{TURN_START}{role}\n{content}{TURN_END}\n"


def ask(talk: Talk, rng: random.Random) -> list[Answered]:
    """Questions of different sorts in random order; the list of turns is always among them."""
    sorts = [_kind_somewhere, _topic_somewhere, _joined, _last_turn, _last_turn, _policy_form]
    picked = [_list_of_turns, *rng.choices(sorts, k=QUESTIONS_PER_DOCUMENT - 1)]
    rng.shuffle(picked)
    return [sort(talk, rng) for sort in picked]


def _list_of_turns(talk: Talk, rng: random.Random) -> Answered:
    question = rng.choice(("List the turns.", "Sum it up.", "What happens, turn by turn?"))
    return question, ", ".join(f"{exchange.topic.name} {exchange.kind}" for exchange in talk.exchanges)


def _last_turn(talk: Talk, rng: random.Random) -> Answered:
    last = talk.exchanges[-1]
    if rng.random() < 0.5:
        return rng.choice(("What is the last turn about?", "Topic of the last turn?")), last.topic.name
    return rng.choice(("What does the last reply do?", "Kind of the last reply?")), last.kind


def _kind_somewhere(talk: Talk, rng: random.Random) -> Answered:
    kind = rng.choice(KINDS)
    forms = ("Does the assistant give {}? Answer Yes or No.", "Is there {} in it? Yes or No?", "Any {}?")
    return rng.choice(forms).format(kind), _yes_no(talk.has(kind=kind))


def _topic_somewhere(talk: Talk, rng: random.Random) -> Answered:
    topic = rng.choice(talk.exchanges).topic if rng.random() < 0.5 else rng.choice(TOPICS)
    forms = ("Is it about {}? Answer Yes or No.", "Does the user ask about {}? Yes or No?", "Any {}?")
    return rng.choice(forms).format(topic.name), _yes_no(talk.has(topic))


def _joined(talk: Talk, rng: random.Random) -> Answered:
    """Topic and kind in one turn, likely one that is here; never health with advice (that is the quickstart's own)."""
    topic, kind = rng.choice(OTHERS), rng.choice(KINDS)
    seen = rng.choice(talk.exchanges)
    if rng.random() < 0.7:
        topic = seen.topic
    if rng.random() < 0.6:
        kind = seen.kind
    if topic is HEALTH and kind == "advice":
        topic = rng.choice(OTHERS)
    forms = (
        "Does the assistant give {kind} about {topic}? Answer Yes or No.",
        "Is there {topic} {kind}? Yes or No?",
        "Any {topic} {kind}?",
    )
    return rng.choice(forms).format(topic=topic.name, kind=kind), _yes_no(talk.has(topic, kind))


def _policy_form(talk: Talk, rng: random.Random) -> Answered:
    title, broken = rng.choice(
        (
            ("No thanks", talk.thanks is not None),
            ("No greeting", talk.greeting is not None),
            ("One request only", len(talk.exchanges) > 1),
        )
    )
    forms = (
        "Policy check: {}. Does the conversation violate it? Answer Yes or No.",
        "Policy: {}. Is it violated? Yes or No?",
        "Check the policy: {}. Answer Yes or No.",
    )
    return rng.choice(forms).format(title), _yes_no(broken)


def _yes_no(truth: bool) -> str:
    return "Yes" if truth else "No"
