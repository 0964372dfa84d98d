"""Bundles on the model hub: published and fetched by huggingface_hub's own client, with the user's own login."""

import glob
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] the root error of whichever HTTP client it uses
)

from alora.bundle.battery import BATTERY_FILE, battery_folders
from alora.bundle.light import read_bundle
from alora.bundle.manifest import BUNDLE_FILES, MANIFEST_FILE
from alora.config.paths import HUB_ID
from alora.errors import BundleError, first_line


def fetch_bundle(name: str, endpoint: str | None = None) -> Path:
    """The folder of the bundle or battery ``user/repository`` (``@revision``: a branch, tag or commit) in the hub's own
    cache.

    Only files of a bundle's names are fetched, of a battery those of the bundles that it lists, and none is run; the
    folder is read like any other, link by link.
    """
    folder = _fetch(name, [BATTERY_FILE, *BUNDLE_FILES], endpoint)
    if (folder / BATTERY_FILE).is_file():
        bundles = [glob.escape(bundle.name) for bundle in battery_folders(folder)]
        folder = _fetch(
            name, [BATTERY_FILE, *(f"{bundle}/{file}" for bundle in bundles for file in BUNDLE_FILES)], endpoint
        )
    elif not (folder / MANIFEST_FILE).is_file():
        raise BundleError(f"{name} on the hub holds no {MANIFEST_FILE}, so it is not a bundle of alora's")
    return folder


def _fetch(name: str, patterns: list[str], endpoint: str | None) -> Path:
    parts = HUB_ID.fullmatch(name)
    if parts is None:
        raise BundleError(f"artifact {name} is neither a folder nor a hub id; write user/repository")
    try:
        return Path(snapshot_download(parts[1], revision=parts[2], allow_patterns=patterns, endpoint=endpoint))
    except Exception as error:  # the hub's client and the one below it raise a dozen kinds
        raise BundleError(
            f"there is no folder {name}, and it cannot be fetched from the hub: {first_line(error)}; check the name, "
            "the network and HF_HUB_OFFLINE, or log in with `hf auth login`"
        ) from error


def push_bundle(folder: Path | str, repo_id: str, private: bool = True, endpoint: str | None = None) -> str:
    """Upload a bundle as one commit and return the commit's address; the repository is made when it is missing.

    Only the files that the manifest lists are sent. ``endpoint`` is the hub's address (default: ``HF_ENDPOINT``, else
    the public hub).
    """
    bundle = read_bundle(folder)
    api = HfApi(endpoint=endpoint)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=bundle.folder,
            allow_patterns=[MANIFEST_FILE, *bundle.manifest.files],
            commit_message=f"Adapter {bundle.manifest.adapter_digest[:12]} for the policy {bundle.policy.id}",
        )
    except (OSError, ValueError, HTTPError) as error:  # HFValidationError is a ValueError, HfHubHTTPError an OSError
        raise BundleError(
            f"export.push_to={repo_id!r} is not taken by the hub at {api.endpoint}: {first_line(error)}; check the "
            "name, the network and HF_HUB_OFFLINE, or log in with `hf auth login`; the bundle itself is complete: push "
            "it later with `alora export artifact=BUNDLE export.push_to=NAME/REPOSITORY`"
        ) from error
    return str(commit.commit_url)
