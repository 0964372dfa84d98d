"""Write a bundle under a temporary name, read it back from disk, score with it again, then rename it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError

from alora.adapter.folder import AdapterWeights, save_adapter
from alora.atomic import flush, others, replace_folder, workshop
from alora.base.load import LoadedBase
from alora.base.stored import template_text
from alora.bundle.card import model_card
from alora.bundle.golden import GoldenRow, measure, write_golden
from alora.bundle.manifest import (
    BUNDLE_FILES,
    CARD_FILE,
    CERTIFICATE_FILE,
    GOLDEN_FILE,
    MANIFEST_FILE,
    BaseRecord,
    CertificateRecord,
    Description,
    Manifest,
    read_manifest,
)
from alora.bundle.read import Bundle, check_golden, load_bundle
from alora.config.paths import DEFAULT_BASE
from alora.data.probes import probe_conversations
from alora.errors import BundleError, CheckFailed
from alora.identity.certificate import Certificate, write_certificate
from alora.prefix.scorer import Scorer
from alora.received import file_record
from alora.training.layout import own_link
from alora.version import __version__

RELOAD_TOLERANCE = 1e-5
PACKAGES = ("torch", "transformers", "peft", "safetensors")


@dataclass(frozen=True, kw_only=True)
class BundleContents(Description):
    """The contents of a bundle.

    ``certificate`` may be None for a plain LoRA only. ``revision`` is the hub revision that the base was loaded at, and
    ``chat_template`` what ``base.chat_template`` was.
    """

    base: LoadedBase
    weights: AdapterWeights
    certificate: Certificate | None = None
    revision: str | None = None
    chat_template: str | None = None


def write_bundle(contents: BundleContents, folder: Path | str, golden_rows: int = 8) -> Bundle:
    """Write ``folder`` and return it as read back from disk; an older bundle there is replaced when this one is whole.

    Golden rows are probe conversations of alora's own, never the user's rows; ``golden_rows=0`` stores none.
    """
    folder = Path(folder).absolute()
    _require_certificate(contents)
    require_replaceable(folder, contents.policy.id)
    _require_invocation(contents)
    stored = _measure(contents, golden_rows)

    return put_bundle(
        folder,
        lambda staged: _write_files(staged, contents, stored),
        lambda reloaded: _check_reloaded(reloaded, contents, stored),
    )


def copy_bundle(source: Path | str, folder: Path | str) -> Bundle:
    """Copy a checked bundle, and nothing that lies next to its files; an older bundle at ``folder`` is replaced."""
    bundle = load_bundle(source)
    folder = Path(folder).absolute()
    require_replaceable(folder, bundle.policy.id)

    def fill(staged: Path) -> None:
        staged.mkdir()
        for name in (*bundle.manifest.files, MANIFEST_FILE):
            shutil.copyfile(bundle.folder / name, staged / name)
            flush(staged / name)

    return put_bundle(folder, fill)


def public_source(source: str) -> tuple[str, bool]:
    """The base's name as it may be published, and whether it was a local folder (whose path stays private)."""
    path = Path(source).expanduser()
    local = source != DEFAULT_BASE and (path.is_absolute() or path.exists() or source.startswith("."))
    return (path.resolve().name, True) if local else (source, False)


def _require_certificate(contents: BundleContents) -> None:
    if not contents.weights.spec.activated:
        return
    certificate = contents.certificate
    remedy = "run `alora validate` on it, and export when it passes"
    if certificate is None:
        raise CheckFailed(f"adapter {contents.policy.id!r} has no KV identity certificate; {remedy}")
    if not certificate.passed:
        reason = next(iter(certificate.failures), "no reason recorded")
        raise CheckFailed(f"adapter {contents.policy.id!r} failed the KV identity check: {reason}; {remedy}")
    certificate.require(contents.base.fingerprint, contents.weights.digest)


def _require_invocation(contents: BundleContents) -> None:
    invoked_by = contents.weights.spec.invocation_ids
    opens_with = contents.renderer(contents.base.tokenizer).suffix(contents.policy).invocation_ids
    if invoked_by is not None and invoked_by != opens_with:
        raise BundleError(
            f"the adapter is invoked by the tokens {list(invoked_by)}, but these prompt settings open its suffix with "
            f"{list(opens_with)}; export with the base and prompt settings of the training run"
        )


def _measure(contents: BundleContents, probes: int) -> tuple[GoldenRow, ...]:
    """Golden rows of the adapter in memory."""
    renderer = contents.renderer(contents.base.tokenizer)
    suffix = renderer.suffix(contents.policy)
    with Scorer(contents.base, [contents.weights]) as scorer:
        return measure(scorer, renderer, suffix, probe_conversations(probes, "export.golden_rows"))


def _write_files(folder: Path, contents: BundleContents, golden: tuple[GoldenRow, ...]) -> None:
    source, local = public_source(contents.base.source)
    save_adapter(contents.weights, folder, source)
    certificate = record = None
    if contents.certificate is not None:
        certificate = replace(contents.certificate, base_source=source)
        write_certificate(certificate, folder / CERTIFICATE_FILE)
        sha256, dtypes = file_record(folder / CERTIFICATE_FILE).sha256, [part.dtype for part in certificate.dtypes]
        record = CertificateRecord(sha256, certificate.passed, certificate.created, tuple(dtypes))
    if golden:
        write_golden(folder / GOLDEN_FILE, golden)
    manifest = Manifest(
        **contents.described,
        activated=contents.weights.spec.activated,
        suffix=contents.renderer(contents.base.tokenizer).suffix(contents.policy),
        base=BaseRecord(
            source=source,
            fingerprint=contents.base.fingerprint,
            dtype=contents.base.dtype,  # pyright: ignore[reportArgumentType] a str there
            revision=contents.revision,
            local=local,
            chat_template=contents.chat_template and template_text(contents.chat_template),
        ),
        adapter_digest=contents.weights.digest,
        files={},
        versions={"alora": __version__, **{name: version(name) for name in PACKAGES}},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        certificate=record,
    )
    without_controls = certificate is not None and certificate.without_controls
    card = model_card(manifest, contents.weights.spec, without_controls)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    for file in folder.iterdir():
        flush(file)
    manifest = replace(manifest, files={file.name: file_record(file) for file in folder.iterdir()})
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    flush(folder / MANIFEST_FILE)
    flush(folder)


def _check_reloaded(bundle: Bundle, contents: BundleContents, stored: tuple[GoldenRow, ...]) -> None:
    """The bundle on disk, not the adapter in memory, gives the same answers, whether or not it stores golden rows."""
    if bundle.golden != stored:
        raise CheckFailed(f"{bundle.folder.name}: the golden rows read back from disk are not those that were written")
    measured = stored or _measure(contents, 1)
    check_golden(replace(bundle, golden=measured), contents.base, RELOAD_TOLERANCE)


def put_bundle(folder: Path, fill: Callable[[Path], None], check: Callable[[Bundle], None] = lambda _: None) -> Bundle:
    """Let ``fill`` write a bundle next to ``folder``, ``check`` it as read back from disk, then rename it there;
    whatever fails leaves nothing."""
    target = own_link(folder) or folder  # what a run's own link leads to is replaced, and not the link
    try:
        with workshop(target) as parent:
            staged = parent / target.name
            fill(staged)
            check(load_bundle(staged))
            replace_folder(staged, target, BUNDLE_FILES)
            flush(target.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BundleError(
            f"the bundle cannot be written to {target}: {reason}; give a writable output= with space"
        ) from error
    return load_bundle(folder)


def require_replaceable(folder: Path, policy: str) -> None:
    """BundleError unless ``folder`` is free or holds a bundle of ``policy`` (an id) and nothing else: only that may be
    replaced."""
    folder = own_link(folder) or folder  # as in put_bundle
    if folder.is_symlink():
        raise BundleError(f"{folder} is a link, which a folder would replace; name the folder that it leads to")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        there = read_manifest(folder).policy.id
    except BundleError as error:
        raise BundleError(
            f"{folder} exists and is not a bundle; give another output= or remove it ({error})"
        ) from error
    if there != policy:
        raise BundleError(f"{folder} holds the bundle of the policy {there!r}, not of {policy!r}; give another output=")
    if stranger := others(folder, BUNDLE_FILES):
        raise BundleError(
            f"{folder} holds {stranger!r} besides the bundle, and would be replaced as a whole; move it away, or give "
            "another output="
        )
