"""The check of :mod:`alora.identity.pytest_plugin`, which imports this only when a test asks for it."""

from collections.abc import Sequence
from pathlib import Path

from alora.adapter.folder import load_adapter
from alora.base.load import LoadedBase, load_base
from alora.config.schema import BaseSettings, IdentitySettings, PromptSettings
from alora.errors import CheckFailed, ConfigError
from alora.identity.cases import bare_suffix, identity_probes
from alora.identity.certificate import Certificate
from alora.identity.certify import certify, require_activated
from alora.prompt.render import Prompt, Renderer

SHOWN_FAILURES = 10
Base = str | Path | LoadedBase


def assert_kv_identity(
    adapter: str | Path,
    base: Base,
    prompts: Sequence[Prompt] | None = None,
    settings: IdentitySettings | None = None,
) -> Certificate:
    """As :func:`alora.identity.pytest_plugin.assert_kv_identity`."""
    folder, settings = Path(adapter), settings or IdentitySettings()
    weights = load_adapter(folder)
    require_activated(weights, folder)
    loaded = load(base)
    if prompts is None:
        renderer = Renderer(loaded.tokenizer, PromptSettings())
        prefixes = [renderer.prefix(conversation) for conversation in identity_probes(settings.conversations)]
        suffix = bare_suffix(weights.spec.invocation_ids or (), prefixes[0])
        prompts = [Prompt(prefix, suffix) for prefix in prefixes]
    certificate = certify(loaded, folder, prompts, settings)
    if not certificate.passed:
        shown = certificate.failures[:SHOWN_FAILURES]
        more = len(certificate.failures) - len(shown)
        lines = [f"  {line}" for line in shown] + ([f"  and {more} more"] if more else [])
        raise CheckFailed("\n".join([f"{folder} breaks KV identity with base {loaded.source!r}:", *lines]))
    return certificate


def load(base: Base) -> LoadedBase:
    """The base that a test names, or has in memory."""
    if isinstance(base, LoadedBase):
        return base
    if not isinstance(base, str | Path):
        raise ConfigError(f"a base is a name, a folder or of alora.base.load.load_base, not {type(base).__name__}")
    source = str(Path(base).absolute()) if Path(base).is_dir() else str(base)
    return load_base(BaseSettings(source=source), progress=False)
