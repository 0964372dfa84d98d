"""Several equal guards: a conversation goes to its own first, where its KV is cached, and to the next one where that
cannot answer."""

import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from alora.data.roles import usual_role
from alora.errors import CheckFailed, ConfigError, PromptRefused
from alora.transport import Full, Unreachable, named

SESSION = "x-session-id"  # by which routers keep a conversation on its replica
_AWAY_S = 30.0  # for which a guard that did not answer comes last
_Answer = TypeVar("_Answer")
_logger = logging.getLogger("alora.client")


def session_id(messages: Sequence[Mapping[str, Any]], tenant: str | None = None) -> str:
    """The same for all turns of a conversation, without personal data: a digest of tenant and opening.

    The opening ends with the first message that is not a system message, which an app's conversations share.
    """
    roles = (usual_role(str(message.get("role", message.get("from")))) for message in messages)
    length = next((n for n, role in enumerate(roles, 1) if role != "system"), len(messages))
    first = json.dumps([tenant, *messages[:length]], sort_keys=True, default=str)
    return hashlib.blake2b(first.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Failover:
    """The order in which several servers are asked: by rendezvous hashing, so that those of a dead one move alone."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._away = dict.fromkeys(urls, float("-inf"))  # until when a server comes last, by the monotonic clock

    def order(self, session: str) -> list[str]:
        """All servers, the conversation's own first."""
        now = time.monotonic()
        return sorted(self._away, key=lambda url: (self._away[url] <= now, _share(session, url)), reverse=True)

    async def first(self, session: str, ask: Callable[[str], Awaitable[_Answer]]) -> _Answer:
        """The answer of the first server that can answer. Where none can, the error is that of one that is full, or of
        the last; PromptRefused ends the asking."""
        failed: ConfigError | CheckFailed | None = None
        for url in self.order(session):
            try:
                return await ask(url)
            except PromptRefused:
                raise
            except (ConfigError, CheckFailed) as error:
                if isinstance(error, Unreachable):
                    self._away[url] = time.monotonic() + _AWAY_S
                if isinstance(error, Full) or not isinstance(failed, Full):
                    failed = error
                if len(self._away) > 1:
                    _logger.warning("%s cannot answer: %s", named(url), error)
        assert failed is not None
        raise failed


def _share(session: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session} {url}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
