"""What tells whether conversations, rows or whole sets of rows are the same."""

import hashlib
from collections.abc import Sequence

from alora.data.conversation import LabelledConversation
from alora.data.messages import Conversation


def text_digest(conversation: Conversation) -> str:
    """Digest of a conversation's roles and words, blind to case and white space: equal for texts that read the same."""
    if conversation.digest:
        return conversation.digest
    lines = [f"{m.role}:{' '.join(m.text.casefold().split())}" for m in conversation.messages]
    return digest("\n".join(lines))


def digest(text: str) -> str:
    """SHA-256 of any text, lone surrogates included."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rows_digest(rows: Sequence[LabelledConversation]) -> str:
    """Digest of rows in their order, to tell whether a run's data has changed."""
    whole = hashlib.sha256()
    for row in rows:
        weight = () if row.weight == 1 else (row.weight,)
        own = (row.conversation.messages, sorted(row.labels.items()), *weight)
        whole.update(repr(own).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
