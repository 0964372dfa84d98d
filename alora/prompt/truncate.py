"""A conversation too long for one prefix: cut, so that whole turns and parts of texts go and a visible marker stays; or
in overlapping windows, cut between messages, a long message between words.

A window repeats the last quarter of the one before it, and each opens with the conversation's own system message where
that takes no more than a quarter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from alora.data.messages import Message

SHARED = 4  # one part in this many of a window is in the next one, too
LEAST_PIECE = 16  # tokens
MARKERS_AT_MOST = 3  # one on each side of the cut, and one for a system text that is gone altogether

# Characters of each end of a conversation that are tokenised, whatever is between them: tokens as a rule have four.
CHARACTERS_PER_TOKEN, LEAST_CHARACTERS = 64, 2**19
_PER_MESSAGE = 8  # tokens that a message needs besides its text


@dataclass(frozen=True)
class Turn:
    """One turn as tokens: ``wrapper`` counts the template's own tokens around ``token_ids``, which are never cut."""

    role: str
    token_ids: tuple[int, ...]
    wrapper: int = 0
    kept: bool = False  # stays, if only as a marker, however much is cut

    @property
    def cost(self) -> int:
        """Tokens that the turn takes in the prefix."""
        return self.wrapper + len(self.token_ids)


def bounded(messages: tuple[Message, ...], max_tokens: int, marker: str) -> tuple[Message, ...]:
    """Messages whose two ends hold all that a prefix of ``max_tokens`` can show, with ``marker`` between them. The same
    messages up to a million characters, and to more where ``max_tokens`` is above 8192. The bound is needed because a
    tokenizer takes 200 bytes for each character before tokens can be cut."""
    room = max(max_tokens * CHARACTERS_PER_TOKEN, LEAST_CHARACTERS)
    if sum(map(_size, messages)) <= 2 * room:
        return messages
    front, head = _end(messages, room)
    back, tail = _end(messages[::-1], room)
    end = len(messages) - back
    first, last = (replace(message, content=message.text, calls=()) for message in (messages[front], messages[end - 1]))
    cut = [
        replace(first, content=first.content[:head] + marker, name=first.name[:head]),
        replace(last, content=last.content[-tail:], name=last.name[:tail]),
    ]
    if front == end - 1:
        cut = [replace(cut[0], content=cut[0].content + cut[1].content)]
    return (*messages[:front], *cut, *messages[end:])


def _size(message: Message) -> int:
    return len(message.name) + len(message.text) + _PER_MESSAGE


def _end(messages: Sequence[Message], room: int) -> tuple[int, int]:
    """How many messages of one end fit whole, and how many characters of the next one."""
    whole = 0
    while (size := _size(messages[whole])) < room:
        whole, room = whole + 1, room - size
    return whole, max(room - _PER_MESSAGE, 1)


def fit(
    turns: Sequence[Turn],
    budget: int,
    taken_from: str,
    marker: Sequence[int],
    quote: Callable[[tuple[int, ...]], Sequence[int]] = lambda _: (),
) -> list[Turn]:
    """The turns cut to at most ``budget`` tokens; unchanged when they fit.

    ``taken_from`` is "middle" (half of the budget for each end) or "start" (all of it for the end). A turn whose text
    is cut through keeps the part at the end of the conversation that is nearer, and shows ``marker`` at the cut.
    ``quote`` says what stands between marker and the rest of a text, at most a marker's length.
    """
    if sum(turn.cost for turn in turns) <= budget:
        return list(turns)
    budget -= MARKERS_AT_MOST * len(marker)
    front_budget = budget // 2 if taken_from == "middle" else 0
    front = _take(turns, front_budget)
    back = _take(turns[::-1], budget - front_budget)[::-1]
    result: list[Turn] = []
    marked = False
    for turn, head, tail in zip(turns, front, back, strict=True):
        ids, size = turn.token_ids, len(turn.token_ids)
        if head == size:
            result.append(turn)
        elif head is None and tail is None:
            if turn.kept:
                result.append(replace(turn, token_ids=tuple(marker)))
                marked = True
        elif tail == size:
            result.append(turn if marked else replace(turn, token_ids=(*marker, *ids)))
            marked = True
        else:
            end = ids[size - tail :] if tail else ()
            result.append(replace(turn, token_ids=(*ids[: head or 0], *marker, *quote(end), *end)))
            marked = True
    if not marked and result:  # only whole turns at one end went
        result[-1] = replace(result[-1], token_ids=(*result[-1].token_ids, *marker))
    return result


def _take(turns: Sequence[Turn], budget: int) -> list[int | None]:
    """How many tokens of each turn's text fit, one turn after the other; None: not even its wrapper and one token."""
    taken: list[int | None] = [None] * len(turns)
    for index, turn in enumerate(turns):
        budget -= turn.wrapper
        if budget < min(1, len(turn.token_ids)):
            break
        taken[index] = min(len(turn.token_ids), budget)
        budget -= len(turn.token_ids)
        if budget < 0:
            break
    return taken


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
