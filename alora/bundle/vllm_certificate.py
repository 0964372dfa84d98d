"""Add vLLM's certificate to a bundle that is already written.

Only ``identity.json`` and ``alora.json`` become new files. The others stay the same files (hard links), so that a
server that has the bundle loaded does not see a changed adapter.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from alora.atomic import flush
from alora.bundle.destination import put_folder
from alora.bundle.manifest import CERTIFICATE_FILE, MANIFEST_FILE
from alora.bundle.read import Bundle, load_bundle
from alora.errors import BundleError
from alora.identity.certificate import Certificate, read_certificate, write_certificate
from alora.received import file_record

_NEW = (CERTIFICATE_FILE, MANIFEST_FILE)


def add_vllm_certificate(bundle: Bundle, vllm: Certificate) -> Bundle:
    """Put ``vllm`` into the bundle's certificate, replacing an earlier one, and return the bundle as read back."""
    manifest = bundle.manifest
    vllm.require(manifest.base.fingerprint, manifest.adapter_digest)
    record = manifest.certificate
    if record is None:
        raise BundleError(f"{bundle.folder} is a plain LoRA without a certificate, so nothing can be added to one")
    inner = next((entry.name for entry in bundle.folder.iterdir() if not entry.is_file()), None)
    if inner is not None:
        raise BundleError(f"{bundle.folder} holds {inner!r}, which is not part of a bundle; take it out, or use a copy")
    own = read_certificate(bundle.folder / CERTIFICATE_FILE)
    whole = replace(own, vllm=replace(vllm, base_source=own.base_source))  # not this machine's path

    def fill(staged: Path) -> None:
        staged.mkdir()
        for file in bundle.folder.iterdir():
            if file.name not in _NEW:
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
        load_bundle(staged)

    put_folder(bundle.folder.resolve(), fill)
    return load_bundle(bundle.folder)


def _same_file(file: Path, staged: Path) -> None:
    """A hard link to the same file; a copy where the file system has none."""
    try:
        os.link(file.resolve(), staged)
    except OSError:
        shutil.copy2(file, staged)
        flush(staged)
