"""KV identity as a fixture for your own tests; pytest finds it once alora is installed.

    def test_identity(alora_identity):
        alora_identity("adapters/jailbreak", base="Qwen/Qwen3-0.6B")

pytest imports this module at the start of every session, so torch is imported only when a test asks for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from alora.config.schema import IdentitySettings
    from alora.identity.asserted import Base
    from alora.identity.certificate import Certificate
    from alora.prompt.render import Prompt


def assert_kv_identity(
    adapter: str | Path,
    base: Base,
    prompts: Sequence[Prompt] | None = None,
    settings: IdentitySettings | None = None,
) -> Certificate:
    """Assert that the adapter leaves the base's prefix KV as it is, bit for bit, and that it acts at all.

    ``adapter`` is a PEFT folder, a bundle or a run, opened as ``alora validate`` opens it; ``base`` a hub id, a folder,
    ``"smollm2"``, or a base in memory. Without ``prompts``, conversations that come with alora are used. Returns the
    certificate: keep it as an artefact.

    Raises:
        CheckFailed: an AssertionError whose message names the first differences.
        AloraError: what ``alora validate`` refuses: a bundle that was changed, another base than the adapter's.
    """
    return _asserted().assert_kv_identity(adapter, base, prompts, settings)


def _asserted() -> ModuleType:
    from alora.identity import asserted

    return asserted


@pytest.fixture(scope="session")
def alora_identity() -> Callable[..., Certificate]:
    """:func:`assert_kv_identity` that loads each base once per session."""
    bases: dict[str, Base] = {}

    def check(adapter: str | Path, base: Base, *prompts_and_settings: object, **named: object) -> Certificate:
        if isinstance(base, str | Path):
            base = bases.setdefault(str(base), bases.get(str(base)) or _asserted().load(base))
        return _asserted().assert_kv_identity(adapter, base, *prompts_and_settings, **named)  # pyright: ignore

    return check
