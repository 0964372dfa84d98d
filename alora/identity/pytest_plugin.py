"""KV identity as a fixture for your own tests; pytest finds it once alora is installed.

    def test_identity(alora_identity):
        alora_identity("adapters/jailbreak", base="Qwen/Qwen3-0.6B")

pytest imports this module at the start of every session, so torch is imported only when a test asks for the check.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.identity.certificate import Certificate


def assert_kv_identity(*given: Any, **named: Any) -> Certificate:
    """:func:`alora.identity.asserted.assert_kv_identity`."""
    from alora.identity.asserted import assert_kv_identity

    return assert_kv_identity(*given, **named)


@pytest.fixture(scope="session")
def alora_identity() -> Callable[..., Certificate]:
    """:func:`assert_kv_identity` that loads each base once per session."""
    bases: dict[str, LoadedBase] = {}

    def check(adapter: str | Path, base: Any, *given: Any, **named: Any) -> Certificate:
        from alora.identity.asserted import load

        if isinstance(base, str | Path):
            base = bases[str(base)] = bases.get(str(base)) or load(base)
        return assert_kv_identity(adapter, base, *given, **named)

    return check
