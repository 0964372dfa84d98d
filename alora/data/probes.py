"""Conversations written for this project, to run an adapter on: for golden rows, and for KV identity without data.

They are about everyday business, so they exercise the arithmetic, not a policy; and they may be published, which a
user's rows may not.
"""

from functools import cache
from pathlib import Path

import yaml

from alora.data.conversation import Conversation, Message
from alora.errors import ConfigError


def probe_conversations(count: int, setting: str, least: int = 0) -> tuple[Conversation, ...]:
    """The first ``count`` probes; ``setting`` is the recipe's key that asked for them."""
    known = _probes()
    if not least <= count <= len(known):
        raise ConfigError(f"{setting}={count} must lie between {least} and {len(known)}, the conversations there are")
    return known[:count]


@cache
def _probes() -> tuple[Conversation, ...]:
    turns = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tuple(
        Conversation(f"probe-{number}", tuple(Message(*turn) for turn in probe))
        for number, probe in enumerate(turns, 1)
    )
