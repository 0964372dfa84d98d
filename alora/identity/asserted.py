"""The check of :mod:`alora.identity.pytest_plugin`, which imports this only when a test asks for it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from alora.base.load import LoadedBase, load_base
from alora.bundle.artifact import find_artifact, members_by_policy
from alora.bundle.read import check_bundles
from alora.bundle.subject import Subject, open_subject
from alora.config.schema import BaseSettings, IdentitySettings, Recipe
from alora.errors import CheckFailed, ConfigError
from alora.identity.cases import identity_probes
from alora.identity.certificate import Certificate
from alora.identity.certify import certify, require_activated
from alora.prompt.render import Prompt

SHOWN_FAILURES = 10
Base = str | Path | LoadedBase


def assert_kv_identity(
    adapter: str | Path,
    base: Base,
    prompts: Sequence[Prompt] | None = None,
    settings: IdentitySettings | None = None,
) -> Certificate:
    """Assert that the adapter leaves the base's prefix KV as it is, bit for bit, and that it acts at all.

    ``adapter`` is a PEFT folder, a bundle or a run, opened as ``alora validate`` opens it; ``base`` a hub id, a folder,
    ``"smollm2"``, or a base in memory. Without ``prompts``, conversations that come with alora are used. CheckFailed
    (an AssertionError) names the first differences. Returns the certificate: keep it as an artefact.
    """
    settings = settings or IdentitySettings()
    subject = _opened(adapter, base.source if isinstance(base, LoadedBase) else str(base))
    folder = subject.folder
    require_activated(subject.weights, folder)
    loaded = load(base)
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


def _opened(adapter: str | Path, base: str) -> Subject:
    """The adapter of a folder, a bundle or a run, opened as ``alora validate`` opens it; ConfigError for several."""
    artifact = find_artifact(adapter)
    folders = [*members_by_policy(artifact).values()]
    if len(folders) > 1:
        raise ConfigError(f"{adapter} holds {len(folders)} policies; name the folder of one, such as {folders[0]}")
    return open_subject(folders[0], artifact, replace(Recipe(), base=BaseSettings(source=base)))


def load(base: Base) -> LoadedBase:
    """The base that a test names, or has in memory."""
    if isinstance(base, LoadedBase):
        return base
    source = str(Path(base).absolute()) if Path(base).is_dir() else str(base)
    return load_base(BaseSettings(source=source), progress=False)
