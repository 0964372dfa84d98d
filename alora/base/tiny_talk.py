"""Conversations in the tiny base's world, written by a seeded grammar, with what happens in each turn known.

An :class:`Exchange` is a user's request on one topic and an assistant's reply of one kind. The kinds are built of the
same openers and closers, and requests may name the very action that a reply of advice would, so that neither length
nor a single word tells a kind.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alora.base.tiny_words import FRAME_CYCLE, NAMES, TOPICS, WORD_CYCLE, Topic, held_out

KINDS = ("advice", "referral", "question", "facts")


def _frames(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


# Slots: {p} problem, {a} action, {e} expert, {f} fact, {n} name. Every fourth frame is kept for held-out rows.
REQUESTS = _frames(
    """I have {p}. What should I do?
    What can I do about {p}?
    Help, I have {p} again.
    Can you help me? I have {p}.
    My friend {n} has {p}. What now?
    I had {p} since Monday. Should I {a}?
    How do I deal with {p}? I want to {a}.
    {n} has {p}. What can I say?
    Do you know what to do about {p}?
    This is {n}. It is about {p}. Is it a good idea to {a}?
    I think it is {p}. What is the best way to go?
    It is {n} again. Should I {a}? I have {p}.
    Someone told me to {a}. I have {p}.
    {n} here. Can you say something about {p}?
    I would like to know more about {p}.
    I want to know about {p}. Is it best to {a}?"""
)
REPLIES = {
    "advice": _frames(
        """You should {a}.
        I would {a}.
        Go and {a}, it will get better.
        I would first {a} and then wait.
        The best thing is to {a}.
        Try this: {a}.
        Just {a}, that works for {p}.
        Here is the best thing: {a}.
        First {a}, then wait a day.
        It helps to {a}.
        For {p} I suggest one thing: {a}.
        I suggest that you {a}.
        Yes, {a}. That is what I tell everyone.
        Please {a}, twice if needed.
        If you want my tip, {a}.
        My tip for {p}: {a}."""
    ),
    "referral": _frames(
        """I can not judge that, please ask a {e}.
        That is a matter for a {e}.
        Please talk to a {e} about {p}.
        Please ask a {e} to look at {p}.
        I am not the right one to say; the right one is a {e}.
        Only a {e} can answer that.
        Call a {e} first and do not {a}.
        I can not say. Call a {e} about {p}.
        Have you asked a {e}? I can not help with {p}.
        See a {e} soon.
        I do not want to guess. Go to a {e}.
        I do not judge {p}, a {e} can.
        Let a {e} look at it first.
        You should talk to a {e}.
        If I were you I would ask a {e} about {p}.
        It is a matter for a {e}, not for me."""
    ),
    "question": _frames(
        """How long have you had {p}?
        When did it start?
        Can you tell me more about {p}?
        Can you tell me when {p} did start?
        What have you tried so far?
        Is it the first time?
        Did you {a} before?
        Have you had {p} before?
        Does it get worse in the evening?
        Who told you about {p}?
        Did you ask someone else before?
        Who told you to {a}?
        Why do you think it is {p}?
        What did it look like on the first day?
        How bad is it on most days, and when?
        How bad is it when you rest?"""
    ),
    "facts": _frames(
        """There is one thing to know. {f}
        Here is something I read. {f}
        There can be many causes of {p}. {f}
        I read one thing about {p}. {f}
        Did you know this? {f}
        Many people have {p}. {f}
        In general there is a lot to read about this. {f}
        Here is one thing to know about {p}. {f}
        {f} That is all I know.
        You can read about {p} in many books. {f}
        {f} That is true in general.
        {f} Many people know that.
        It is an old story. {f}
        {f} I do not know more about {p}.
        Some say it is easy, some say it is not. {f}
        Some say this. {f}"""
    ),
}
OPENERS = _frames(
    """I am sorry to hear that.
    Thank you for asking.
    I see.
    Sorry to hear that.
    Good question.
    Well, let me think.
    That sounds hard, well.
    I see, that sounds hard.
    Let me see.
    All right.
    Do not worry.
    Well, do not worry."""
)
CLOSERS = _frames(
    """I hope that helps.
    Let me know how it goes.
    Take care.
    Let me know.
    Ask me again at any time.
    I wish you a good day.
    All the best.
    I hope it goes well.
    Sorry that I know so little.
    Good luck.
    Tell me how it went.
    I wish you all the best."""
)
GREETINGS = _frames(
    """Hello, how can I help?
    Hi, what can I do for you?
    Sorry, I was away. How can I help?
    Hello, what can I do?"""
)
THANKS = _frames(
    """Thanks, bye.
    Thank you, that is all.
    Okay, thanks for the help.
    Thank you for the help, bye."""
)


@dataclass(frozen=True)
class Wording:
    """Which half of the pools may be used. The corpus uses all words, but never a held-out frame."""

    held_words: bool | None
    held_frames: bool

    def words(self, pool: Sequence[str]) -> Sequence[str]:
        return pool if self.held_words is None else held_out(pool, WORD_CYCLE, self.held_words)

    def frames(self, pool: Sequence[str]) -> Sequence[str]:
        return held_out(pool, FRAME_CYCLE, self.held_frames)


CORPUS = Wording(held_words=None, held_frames=False)
SEEN = Wording(held_words=False, held_frames=False)
UNSEEN = Wording(held_words=True, held_frames=True)


@dataclass(frozen=True)
class Exchange:
    """A request of the user and the assistant's reply to it."""

    topic: Topic
    kind: str
    request: str
    reply: str


@dataclass(frozen=True)
class Talk:
    """A whole conversation: perhaps a greeting, one exchange or more, perhaps thanks."""

    exchanges: tuple[Exchange, ...]
    greeting: str | None = None
    thanks: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """The conversation as ``{"role", "content"}`` rows."""
        rows = [] if self.greeting is None else [{"role": "assistant", "content": self.greeting}]
        for exchange in self.exchanges:
            rows += [
                {"role": "user", "content": exchange.request},
                {"role": "assistant", "content": exchange.reply},
            ]
        return rows if self.thanks is None else [*rows, {"role": "user", "content": self.thanks}]

    def has(self, topic: Topic | None = None, kind: str | None = None) -> bool:
        """Whether one exchange is on ``topic`` (None: any) and of ``kind`` (None: any)."""
        return any((topic in (None, e.topic)) and (kind in (None, e.kind)) for e in self.exchanges)


def write_exchange(topic: Topic, kind: str, wording: Wording, rng: random.Random) -> Exchange:
    """One exchange; its request and reply speak of the same problem."""

    def pick(pool: Sequence[str]) -> str:
        return rng.choice(wording.words(pool))

    slots = {
        "p": pick(topic.problems),
        "a": pick(topic.actions),
        "e": rng.choice(topic.experts),
        "f": pick(topic.facts),
        "n": pick(NAMES),
    }
    # What a user asks about is rarely what is advised, so the request draws an action of its own.
    request = rng.choice(wording.frames(REQUESTS)).format(**{**slots, "a": pick(topic.actions)})
    parts = [rng.choice(wording.frames(REPLIES[kind])).format(**slots)]
    if rng.random() < 0.5:
        parts.insert(0, rng.choice(wording.frames(OPENERS)))
    if rng.random() < 0.4:
        parts.append(rng.choice(wording.frames(CLOSERS)))
    return Exchange(topic, kind, request, " ".join(parts))


def write_talk(acts: Sequence[tuple[Topic, str]], wording: Wording, rng: random.Random) -> Talk:
    """A conversation whose exchanges follow ``acts``, a topic and a kind each."""
    return Talk(
        exchanges=tuple(write_exchange(topic, kind, wording, rng) for topic, kind in acts),
        greeting=rng.choice(wording.frames(GREETINGS)) if rng.random() < 0.3 else None,
        thanks=rng.choice(wording.frames(THANKS)) if rng.random() < 0.3 else None,
    )


def fresh_talk(write: Callable[[], Talk], seen_before: set[str]) -> Talk:
    """A conversation by ``write`` that is not in ``seen_before``, which grows by it."""
    while True:
        talk = write()
        key = json.dumps(talk.messages())
        if key not in seen_before:
            seen_before.add(key)
            return talk


def random_acts(rng: random.Random, most: int = 3) -> list[tuple[Topic, str]]:
    """One to ``most`` acts; neighbours often stay on their topic, as people do. Health is drawn more than others."""
    acts: list[tuple[Topic, str]] = []
    for _ in range(min(most, rng.choice((1, 1, 1, 2, 2, 3)))):
        stay = acts and rng.random() < 0.4
        topic = acts[-1][0] if stay else (TOPICS[0] if rng.random() < 0.15 else rng.choice(TOPICS))
        acts.append((topic, rng.choice(KINDS)))
    return acts
