"""KV identity as a fixture for your own tests; pytest finds it once alora is installed.

    def test_identity(alora_identity):
        alora_identity("adapters/jailbreak", base="Qwen/Qwen3-0.6B")

pytest imports this module at the start of every session, so torch is imported only when a test asks for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    ``adapter`` is a PEFT folder, a bundle or a run, opened as ``alora validate`` opens it; ``base`` a hub id, a folder,
    ``"smollm2"``, or a base in memory. Without ``prompts``, conversations that come with alora are used. CheckFailed
    (an AssertionError) names the first differences. Returns the certificate: keep it as an artefact.
    """
    from alora.bundle.artifact import find_artifact, members_by_policy
    from alora.bundle.read import check_bundles
    from alora.bundle.subject import open_subject
    from alora.config.schema import BaseSettings, IdentitySettings, Recipe
    from alora.errors import CheckFailed, ConfigError
    from alora.identity.capture import identity_probes
    from alora.identity.certify import certify, require_activated

    settings = settings or IdentitySettings()
    artifact = find_artifact(adapter)
    folders = [*members_by_policy(artifact).values()]
    if len(folders) > 1:
        raise ConfigError(f"{adapter} holds {len(folders)} policies; name the folder of one, such as {folders[0]}")
    source = str(base) if isinstance(base, str | Path) else base.source
    subject = open_subject(folders[0], artifact, replace(Recipe(), base=BaseSettings(source=source)))
    folder = subject.folder
    require_activated(subject.weights, folder)
    loaded = _load(base)
    subject.require_base_of_run(loaded)
    if subject.bundle is not None:
        check_bundles([subject.bundle], loaded, rows=None)
    if prompts is None:
        prompts = subject.prompts(loaded, identity_probes(settings.conversations))
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

    def check(adapter: str | Path, base: Any, *given: Any, **named: Any) -> Certificate:
        if isinstance(base, str | Path):
            base = bases[str(base)] = bases.get(str(base)) or _load(base)
        return assert_kv_identity(adapter, base, *given, **named)

    return check


def _load(base: str | Path | LoadedBase) -> LoadedBase:
    """The base that a test names, or has in memory."""
    from alora.base.load import load_base
    from alora.config.schema import BaseSettings

    if not isinstance(base, str | Path):
        return base
    source = str(Path(base).absolute()) if Path(base).is_dir() else str(base)
    return load_base(BaseSettings(source=source), progress=False)
