"""Write a bundle again: with vLLM's certificate, or for another precision or quantization of its base.

A base in another quantization computes another function, so answers differ and no tolerance applies. KV identity is
certified again, an operating point is fitted there, and a parity run reports how far the answers to the golden rows
move and how many verdicts change.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from alora.atomic import flush
from alora.base.load import LoadedBase
from alora.bundle.golden import GoldenRow, largest_difference, measure, normalised
from alora.bundle.manifest import CERTIFICATE_FILE, MANIFEST_FILE, MoveRecord
from alora.bundle.read import Bundle
from alora.bundle.write import BundleContents, put_bundle, write_bundle
from alora.config.schema import IdentitySettings
from alora.errors import BundleError, CheckFailed
from alora.evaluation.calibration import positive_probability
from alora.identity.capture import identity_probes
from alora.identity.certificate import Certificate, read_certificate, write_certificate
from alora.identity.certify import certify
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prompt
from alora.received import file_record
from alora.verdict import OperatingPoint


def is_move(bundle: Bundle, base: LoadedBase) -> bool:
    """Whether ``base`` differs from the bundle's in its quantization, or the settings of that, alone."""
    differing = set(bundle.manifest.base.fingerprint.differences(base.fingerprint))
    return bool(differing) and differing <= {"quantization", "quantization_settings"}


def require_movable(bundle: Bundle, base: LoadedBase) -> None:
    """Refuse a bundle that could not be compared with itself on ``base``."""
    if not bundle.golden:
        raise BundleError(
            f"{bundle.folder} stores no golden rows, so its answers cannot be compared on a base in "
            f"{base.fingerprint.quantization}; export it again with export.golden_rows=8"
        )
    bundle.check_prompts(base)


def parity_run(bundle: Bundle, base: LoadedBase, point: OperatingPoint) -> MoveRecord:
    """Ask the adapter on ``base`` for the bundle's golden rows; ``point`` is the one fitted there."""
    require_movable(bundle, base)
    conversations = [row.conversation for row in bundle.golden]
    with Scorer(base, [bundle.weights]) as scorer:
        here = measure(scorer, bundle.renderer(base), bundle.suffix, conversations)
    before, after = _fired(bundle.golden, bundle.manifest.operating_point), _fired(here, point)
    return MoveRecord(
        quantization=bundle.manifest.base.fingerprint.quantization,
        dtype=bundle.manifest.base.dtype,
        rows=len(here),
        same_verdict=sum(first == second for first, second in zip(before, after, strict=True)),
        largest_difference=largest_difference(normalised(bundle.golden), normalised(here)),
    )


def _fired(rows: Sequence[GoldenRow], point: OperatingPoint) -> list[bool]:
    logits_NL = np.array([row.label_logits for row in rows], dtype=np.float64)
    return (positive_probability(logits_NL, point.temperature, point.bias) >= point.threshold).tolist()


def moved(bundle: Bundle, base: LoadedBase, point: OperatingPoint) -> MoveRecord | None:
    """The parity run, where the base is quantized in another way; else the one stored when the bundle was moved."""
    return parity_run(bundle, base, point) if is_move(bundle, base) else bundle.manifest.moved


def recertify(bundle: Bundle, base: LoadedBase, settings: IdentitySettings) -> Certificate | None:
    """The bundle's own certificate; a new one where the base is quantized in another way, since a certificate covers
    one base."""
    if not is_move(bundle, base):
        bundle.check_base(base)
        return None if bundle.manifest.certificate is None else read_certificate(bundle.folder / CERTIFICATE_FILE)
    require_movable(bundle, base)
    if not bundle.manifest.activated:
        return None
    renderer = bundle.renderer(base)
    probes = identity_probes(settings.conversations)
    prompts = [Prompt(renderer.prefix(conversation), bundle.suffix) for conversation in probes]
    certificate = certify(base, bundle.folder, prompts, settings)
    if not certificate.passed:
        raise CheckFailed(f"KV identity of {bundle.policy.id} failed: {'; '.join(certificate.failures[:3])}")
    return certificate


def rewrite_bundle(
    bundle: Bundle,
    folder: Path,
    *,
    base: LoadedBase,
    certificate: Certificate | None,
    operating_point: OperatingPoint,
    moved: MoveRecord | None,
    validation: Mapping[str, int],
) -> Bundle:
    """Write ``bundle`` to ``folder`` as it is on ``base``; ``validation`` counts the rows of the new point by label."""
    manifest = bundle.manifest
    changed = {"operating_point": operating_point, "moved": moved, "data": {**manifest.data, "validation": validation}}
    contents = BundleContents(
        **manifest.described | changed,
        base=replace(base, source=base.source if manifest.base.local else manifest.base.source),
        weights=bundle.weights,
        certificate=certificate,
        revision=manifest.base.revision,
        chat_template=manifest.base.chat_template,
    )
    return write_bundle(contents, folder, len(bundle.golden))


def add_vllm_certificate(bundle: Bundle, vllm: Certificate) -> Bundle:
    """Put ``vllm`` into the bundle's certificate, replacing an earlier one, and return the bundle as read back."""
    manifest = bundle.manifest
    vllm.require(manifest.base.fingerprint, manifest.adapter_digest)
    record = manifest.certificate
    if record is None:
        raise BundleError(f"{bundle.folder} is a plain LoRA without a certificate, so nothing can be added to one")
    own = read_certificate(bundle.folder / CERTIFICATE_FILE)
    whole = replace(own, vllm=replace(vllm, base_source=own.base_source))  # not this machine's path

    def fill(staged: Path) -> None:
        staged.mkdir()
        for file in bundle.folder.iterdir():
            if file.is_file() and file.name not in (CERTIFICATE_FILE, MANIFEST_FILE):
                _same_file(file, staged / file.name)
        write_certificate(whole, staged / CERTIFICATE_FILE)
        file = file_record(staged / CERTIFICATE_FILE)
        changed = replace(
            manifest,
            certificate=replace(record, sha256=file.sha256, vllm=vllm.engine),
            files={**manifest.files, CERTIFICATE_FILE: file},
        )
        (staged / MANIFEST_FILE).write_text(changed.to_json(), encoding="utf-8")
        flush(staged / MANIFEST_FILE)
        flush(staged)

    return put_bundle(bundle.folder.resolve(), fill)


def _same_file(file: Path, staged: Path) -> None:
    """A hard link to the same file; a copy where the file system has none."""
    try:
        os.link(file.resolve(), staged)
    except OSError:
        shutil.copy2(file, staged)
        flush(staged)
