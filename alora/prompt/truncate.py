"""Cut a conversation that is too long: whole turns and parts of texts go, a visible marker stays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alora.data.conversation import Message

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
    """Messages whose two ends hold all that a prefix of ``max_tokens`` can show, with ``marker`` between them.

    The same messages up to a million characters, and to more where ``max_tokens`` is above 8192. The bound is needed
    because a tokenizer takes 200 bytes for each character before tokens can be cut.
    """
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
