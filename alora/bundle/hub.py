"""Publish a bundle on the model hub, with huggingface_hub's own client and the user's own login."""

from __future__ import annotations

from pathlib import Path

from alora.bundle.manifest import MANIFEST_FILE
from alora.bundle.read import load_bundle
from alora.errors import BundleError


def push_bundle(folder: Path | str, repo_id: str, private: bool = True, endpoint: str | None = None) -> str:
    """Upload a bundle as one commit and return the commit's address; the repository is made when it is missing.

    Only the files that the manifest lists are sent. ``endpoint`` is the hub's address (default: ``HF_ENDPOINT``, else
    the public hub).

    Raises:
        BundleError: the bundle is damaged, the name is impossible, the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage] the root error of whichever HTTP client it uses
        OfflineModeIsEnabled,
    )

    bundle = load_bundle(folder)
    api = HfApi(endpoint=endpoint)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=bundle.folder,
            allow_patterns=[MANIFEST_FILE, *bundle.manifest.files],
            commit_message=f"Adapter {bundle.manifest.adapter_digest[:12]} for the policy {bundle.policy.id}",
        )
    except HFValidationError as error:
        raise BundleError(f"export.push_to={repo_id!r} is no repository id: {_first_line(error)}") from error
    except OfflineModeIsEnabled as error:
        raise BundleError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it") from error
    except HfHubHTTPError as error:
        raise BundleError(
            f"the hub at {api.endpoint} refuses to take {repo_id}: {_first_line(error)}; log in with "
            "`hf auth login` and check that you may write there"
        ) from error
    except (OSError, HTTPError) as error:
        raise BundleError(
            f"the hub at {api.endpoint} cannot be reached ({_first_line(error)}); the bundle itself is complete: push "
            "it later with `alora export artifact=BUNDLE export.push_to=NAME/REPOSITORY`"
        ) from error
    return str(commit.commit_url)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
