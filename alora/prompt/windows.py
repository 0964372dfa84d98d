"""A conversation too long for one prefix, as overlapping windows: cut between messages, a long message between words.

A window repeats the last quarter of the one before it, and each opens with the conversation's own system message where
that takes no more than a quarter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from alora.data.messages import Message

SHARED = 4  # one part in this many of a window is in the next one, too
LEAST_PIECE = 16  # tokens


@dataclass(frozen=True)
class _Piece:
    """A part of message ``message_index``, all of it where it ``opens`` and ``closes``; ``cost`` is in tokens."""

    message_index: int
    message: Message
    cost: int
    opens: bool
    closes: bool


def windows(
    messages: Sequence[Message], limit: int, size: Callable[[Sequence[Message]], int], marker: str
) -> Iterator[tuple[Message, ...]]:
    """The messages of each window. ``size`` counts the tokens of a prefix, ``limit`` is the most; ``marker`` stands
    where a message is cut."""
    nothing = Message("user", "")
    own = messages[0].role == "system"
    head = tuple(messages[:own]) if size(messages[:1]) - size((nothing,)) <= limit // SHARED else ()
    bare = size((*head, nothing))
    room = limit - bare
    share = max(room // SHARED, LEAST_PIECE)

    def cost(message: Message) -> int:
        return size((*head, nothing, message)) - bare

    pieces = [
        piece
        for message_index, item in enumerate(messages[len(head) :])
        for piece in _pieces(message_index, item, share, cost)
    ]
    start = end = 0
    while end < len(pieces):
        end, total = start + 1, pieces[start].cost
        while end < len(pieces) and total + pieces[end].cost <= room:
            total += pieces[end].cost
            end += 1
        while end > start + 1 and size((*head, *_whole(pieces[start:end], marker))) > limit:
            end -= 1
        yield (*head, *_whole(pieces[start:end], marker))
        shared, first = 0, start + 1
        start = end
        while start > first and (shared := shared + pieces[start - 1].cost) <= share:
            start -= 1


def _pieces(message_index: int, message: Message, share: int, cost: Callable[[Message], int]) -> list[_Piece]:
    item = replace(message, content=message.text, calls=())
    if item.name and cost(replace(item, content="")) > share:  # each part would repeat it, and none would be short
        item = replace(item, name="", content=f"({item.name}) {item.content}")
    parts = _parts(item, share, cost)
    ends = (0, len(parts) - 1)
    return [_Piece(message_index, part, cost(part), i == ends[0], i == ends[1]) for i, part in enumerate(parts)]


def _parts(message: Message, share: int, cost: Callable[[Message], int]) -> list[Message]:
    text = message.content
    count = min(-(-cost(message) // share), len(text))
    if count <= 1:
        return [message]
    ends = []
    for end in (len(text) * part // count for part in range(1, count)):
        start = end - len(text) // (2 * count)
        blank = text.rfind(" ", start, end)
        line = text.rfind("\n", start, end)
        ends.append(blank if blank >= 0 else line if line >= 0 else end)
    parts = [replace(message, content=text[low:high]) for low, high in pairwise([0, *ends, len(text)])]
    return [small for part in parts if part.content for small in _parts(part, share, cost)]


def _whole(pieces: Sequence[_Piece], marker: str) -> Iterator[Message]:
    """Neighbouring parts of a message as one again."""
    for _, group in groupby(pieces, key=lambda piece: piece.message_index):
        parts = list(group)
        text = "".join(part.message.content for part in parts)
        before, after = "" if parts[0].opens else marker, "" if parts[-1].closes else marker
        yield replace(parts[0].message, content=before + text + after)
