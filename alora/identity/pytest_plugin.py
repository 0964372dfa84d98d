"""KV identity in a user's own test suite: ``pip install alora-toolkit`` is all that it takes.

    def test_identity(alora_identity):
        alora_identity("adapters/jailbreak", base="Qwen/Qwen3-0.6B")

pytest imports this module at the start of every session, so torch is imported only when a test asks for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.config.schema import IdentitySettings
    from alora.identity.certificate import Certificate
    from alora.prompt.render import Prompt

SHOWN_FAILURES = 10


def assert_kv_identity(
    adapter: str | Path,
    base: str | Path | LoadedBase,
    prompts: Sequence[Prompt] | None = None,
    settings: IdentitySettings | None = None,
) -> Certificate:
    """Assert that the adapter leaves the base's prefix KV as it is, bit for bit, and that it acts at all.

    ``adapter`` is a PEFT folder or a bundle; ``base`` a hub id, a folder, ``"smollm2"``, or a base in memory. Without
    ``prompts``, conversations that come with alora are used. Returns the certificate, to be kept as an artefact.

    Raises:
        CheckFailed: an AssertionError whose message names the first places of difference.
    """
    from alora.adapter.folder import load_adapter
    from alora.config.schema import IdentitySettings
    from alora.errors import CheckFailed
    from alora.identity.certify import certify, require_activated
    from alora.identity.probes import probe_prompts

    folder, settings = Path(adapter), settings or IdentitySettings()
    weights = load_adapter(folder)
    require_activated(weights, folder)
    loaded = _load(base)
    if prompts is None:
        prompts = probe_prompts(loaded, weights.spec.invocation_ids or (), settings.conversations)
    certificate = certify(loaded, folder, prompts, settings)
    if not certificate.passed:
        shown = certificate.failures[:SHOWN_FAILURES]
        more = len(certificate.failures) - len(shown)
        lines = [f"  {line}" for line in shown] + ([f"  and {more} more"] if more else [])
        raise CheckFailed("\n".join([f"{folder} breaks KV identity with base {loaded.source!r}:", *lines]))
    return certificate


@pytest.fixture(scope="session")
def alora_identity() -> Callable[..., Certificate]:
    """:func:`assert_kv_identity` that loads each base once per session."""
    bases: dict[str, LoadedBase] = {}

    def check(
        adapter: str | Path,
        base: str | Path | LoadedBase,
        prompts: Sequence[Prompt] | None = None,
        settings: IdentitySettings | None = None,
    ) -> Certificate:
        if isinstance(base, str | Path):
            if str(base) not in bases:
                bases[str(base)] = _load(base)
            base = bases[str(base)]
        return assert_kv_identity(adapter, base, prompts, settings)

    return check


def _load(base: str | Path | LoadedBase) -> LoadedBase:
    from alora.base.load import load_base
    from alora.config.schema import BaseSettings

    if not isinstance(base, str | Path):
        return base
    source = str(Path(base).absolute()) if Path(base).is_dir() else str(base)
    return load_base(BaseSettings(source=source), progress=False)
