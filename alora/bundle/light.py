"""Open a bundle: whole, unchanged, an aLoRA by both markers. Imports no torch until its weights are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from alora.adapter import CONFIG_FILE, WEIGHTS_FILE
from alora.bundle.golden import GoldenRow, prefix_digest, read_golden
from alora.bundle.manifest import CERTIFICATE_FILE, GOLDEN_FILE, MANIFEST_FILE, Manifest, OfManifest, open_manifest
from alora.config.schema import BaseSettings
from alora.errors import BundleError, ConfigError
from alora.identity.certificate import read_certificate
from alora.prompt.render import Renderer
from alora.received import CHANGED, DAMAGED, NEWER, NOT_OURS, Folder, refused
from alora.text import read_json
from alora.version import __version__
from alora.wire.weights import makes_adapter, weights_digest

if TYPE_CHECKING:
    from alora.adapter.folder import AdapterWeights
    from alora.base.fingerprint import Fingerprint
    from alora.base.load import LoadedBase
    from alora.base.stored import DescribedBase

_changed = partial(refused, BundleError, CHANGED)
_INVOCATION_KEY = "alora_invocation_tokens"
_DIFFERENT_BASE = {
    "weights": "the base's weights are not those that the adapter was trained on; load {source}",
    "tokenizer": "the base's tokenizer is another one, so text gives other token ids; load {source} with its own",
    "template": "the base's chat template is another one, so prompts differ; restore the template of {source}",
    "config": "the base's config.json computes otherwise (RoPE, norms or the like); restore that of {source}",
    "quantization": "the base is quantized in another way ({found}) than the one that the adapter was trained, "
    "certified and given its threshold on ({made}); add base.quantization={made}, or make a bundle for this base, with "
    "its own parity run and threshold: alora recalibrate artifact=DIR base.quantization={found} data.validation=FILE",
    "quantization_settings": "the base is quantized with other settings ({found_settings}) than the adapter was "
    "trained on ({made_settings}); install the alora and bitsandbytes that made it, or train again",
}  # fmt: skip


@dataclass(frozen=True)
class Bundle(OfManifest):
    """A bundle that was read and is whole.

    ``golden`` is empty when it was exported without golden rows.
    """

    folder: Path
    manifest: Manifest
    golden: tuple[GoldenRow, ...]

    @property
    def served_weights(self) -> str:
        """The digest of its adapter's files, by which a request on a server says which weights may answer it."""
        return weights_digest({name: record.sha256 for name, record in self.manifest.files.items()})

    @cached_property
    def weights(self) -> AdapterWeights:
        """Its adapter, read when it is first asked for; BundleError unless it is the one that was certified."""
        from alora.adapter.folder import load_adapter  # torch, which clients of a server go without

        weights, certified = load_adapter(self.folder), self.manifest.adapter_digest
        if weights.digest != certified:
            raise _changed(
                f"{self.folder}: the adapter's digest is {weights.digest[:12]}, the manifest's is {certified[:12]}: "
                "not the adapter that was certified; export the bundle again"
            )
        return weights

    def base_settings(self, given: BaseSettings) -> BaseSettings:
        """The base to load: what the user gave, and from the manifest what they left open."""
        record = self.manifest.base
        template_kwargs = dict(self.manifest.template_kwargs)
        if given.template_kwargs not in ({}, template_kwargs):
            raise ConfigError(
                f"{self.folder} was trained with base.template_kwargs={template_kwargs}, and keeps to them; leave "
                f"{given.template_kwargs} out"
            )
        given = replace(
            given,
            quantization=given.quantization or record.fingerprint.quantization,
            chat_template=given.chat_template or record.chat_template,
            template_kwargs=template_kwargs,
        )
        if given.source is not None:
            return given
        if record.local:
            raise ConfigError(
                f"{self.folder}: its base was a local folder, {record.source!r}; name the folder: base.source=FOLDER"
            )
        return replace(given, source=record.source, revision=given.revision or record.revision)

    def renderer(self, base: LoadedBase | DescribedBase) -> Renderer:
        """The renderer of its prompts on ``base``."""
        return self.manifest.renderer(base.tokenizer)

    def check_base(self, base: LoadedBase | DescribedBase) -> None:
        """Check that ``base`` is the bundle's, and that prompts still become the same token ids on it."""
        require_base(self.folder, self.manifest.base.fingerprint, self.manifest.base.source, base)
        self.check_prompts(base)

    def check_prompts(self, base: LoadedBase | DescribedBase) -> None:
        """Check that prompts still become the same token ids with the base's tokenizer, however it is quantized."""
        renderer = self.renderer(base)
        if renderer.suffix(self.policy) == self.suffix and all(
            prefix_digest(renderer.prefix(row.conversation)) == row.prefix_sha256 for row in self.golden
        ):
            return
        made_by, made_with = (self.manifest.versions.get(name, "unknown") for name in ("alora", "transformers"))
        if made_by == __version__:
            raise _changed(
                f"{self.folder} was made by this version of alora, {made_by}, but its suffix, label tokens or "
                f"golden rows are not those that it renders: {MANIFEST_FILE} or {GOLDEN_FILE} was changed after "
                f"it was written, or the transformers {made_with} that it was made with renders otherwise; "
                "copy the original back, or export the bundle again"
            )
        raise refused(
            BundleError,
            NEWER,
            f"{self.folder} was made by alora {made_by}, which rendered prompts in another way than this one; "
            "install that version, or train the policy again",
        )


def require_base(folder: Path, made: Fingerprint, source: str, base: LoadedBase | DescribedBase) -> None:
    """BundleError, with all differences at once, unless ``base`` is the one that the adapter in ``folder`` was ``made``
    on, whose name is ``source``."""
    differences, found = made.differences(base.fingerprint), base.fingerprint
    if differences:
        facts = {"source": source, "made": made.quantization, "found": found.quantization}
        facts |= {"made_settings": made.quantization_settings, "found_settings": found.quantization_settings}
        lines = [_DIFFERENT_BASE[name].format(**facts) for name in differences]
        raise refused(BundleError, NOT_OURS, "\n  ".join([f"{folder} does not fit the base {base.source}:", *lines]))


def read_bundle(folder: Path | str) -> Bundle:
    """Read a bundle and check everything that needs neither a base nor the weights in memory."""
    folder = Path(folder)
    received, manifest = open_manifest(folder)
    _require_files(received, manifest)
    _compare_markers(folder, manifest)
    received.require_same(manifest.files)
    _require_certificate(folder, manifest)
    golden = read_golden(folder / GOLDEN_FILE) if GOLDEN_FILE in manifest.files else ()
    if any(len(row.label_logits) != len(manifest.policy.labels) for row in golden):
        raise _changed(f"{folder / GOLDEN_FILE} has not one logit per label; export the bundle again")
    return Bundle(folder, manifest, golden)


def _require_files(received: Folder, manifest: Manifest) -> None:
    needed = {CONFIG_FILE, WEIGHTS_FILE} | ({CERTIFICATE_FILE} if manifest.certificate else set())
    if unlisted := sorted(needed - set(manifest.files)):
        why = f"{received.path / MANIFEST_FILE} does not list {', '.join(unlisted)}; export the bundle again"
        raise refused(BundleError, DAMAGED, why)
    received.require_there(manifest.files)
    if stray := sorted(name for name in received.files if makes_adapter(name) and name not in manifest.files):
        raise _changed(
            f"{received.path / stray[0]} is not a file of this bundle, and its name makes it part of the adapter; move "
            "it away"
        )


def _require_certificate(folder: Path, manifest: Manifest) -> None:
    record = manifest.certificate
    if manifest.activated and (record is None or not record.passed):
        state = "no KV identity certificate" if record is None else "a KV identity certificate that failed"
        why = f"{folder} has {state}, so its adapter must not share a cache; export it with alora again"
        raise refused(BundleError, DAMAGED, why)
    if record is not None and record.sha256 != manifest.files[CERTIFICATE_FILE].sha256:
        raise _changed(f"{folder / CERTIFICATE_FILE} is not the certificate that {MANIFEST_FILE} names; export again")
    if record is not None:
        certificate = read_certificate(folder / CERTIFICATE_FILE)
        certificate.require(manifest.base.fingerprint, manifest.adapter_digest, folder)


def _compare_markers(folder: Path, manifest: Manifest) -> None:
    """Both ways: a marker that is in one file only means that a tool rewrote the other."""
    file = folder / CONFIG_FILE
    invocation = read_json(file, BundleError, "copy or export the bundle again").get(_INVOCATION_KEY)
    recorded = list(manifest.suffix.invocation_ids)
    if manifest.activated and invocation is None:
        raise _changed(
            f"{file} has no {_INVOCATION_KEY}, but {MANIFEST_FILE} says that this is an activated LoRA: a tool deleted "
            "the key, and the adapter would silently run as a plain LoRA; copy the original file back, or set it to "
            f"{recorded}"
        )
    if not manifest.activated and invocation is not None:
        raise _changed(
            f"{file} has {_INVOCATION_KEY}, but {MANIFEST_FILE} says that this is a plain LoRA trained from token 0; "
            "one of them was changed: export the bundle again"
        )
    if manifest.activated and invocation != recorded:
        raise _changed(
            f"{file}: {_INVOCATION_KEY} is {invocation}, but the suffix in {MANIFEST_FILE} begins with {recorded}; "
            "one of them was changed: export the bundle again"
        )
