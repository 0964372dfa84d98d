"""A battery: several bundles on one base, scored in one pass.

``battery.json`` lies next to the bundles' folders and lists their names: ``{"schema_version": 1, "bundles": [...]}``.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from alora.atomic import write_json
from alora.bundle.light import Bundle
from alora.config.setting import names_a_folder
from alora.errors import BundleError
from alora.received import NOT_OURS, Folder, read_record, refused

BATTERY_FILE = "battery.json"
SCHEMA_VERSION = 1
_REMEDY = "write the battery again"


@dataclass(frozen=True)
class _Battery:
    """``battery.json``."""

    schema_version: int
    bundles: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.bundles:
            if not names_a_folder(name):
                raise ValueError(f"{name[:80]!r} is not a name of a folder next to it")


def battery_folders(folder: Path | str) -> list[Path]:
    """The folders of the bundles that ``battery.json`` lists, in its order, not opened yet. What lies next to them is
    not looked at: a guard's users put bundles there, also such as it refuses."""
    file = Path(folder) / BATTERY_FILE
    if not file.exists():
        raise refused(BundleError, NOT_OURS, f"{folder} has no {file.name}, so it is not a battery")
    names = read_record(_Battery, file, BundleError, _REMEDY, schema_version=SCHEMA_VERSION).bundles
    Folder(Path(folder), BundleError, _REMEDY, *names, BATTERY_FILE)
    return [Path(folder) / name for name in names]


def write_battery(folder: Path | str, bundles: Sequence[Bundle]) -> None:
    """List ``bundles``, which are folders directly inside ``folder``, in its ``battery.json``."""
    require_one_base(bundles)
    listed = _Battery(SCHEMA_VERSION, tuple(bundle.folder.name for bundle in bundles))
    write_json(Path(folder) / BATTERY_FILE, asdict(listed))


def require_all_listed(folder: Path | str, names: Collection[str]) -> None:
    """BundleError where ``folder`` has a ``battery.json`` that lists others than ``names``, which are to be its whole
    list."""
    if not (Path(folder) / BATTERY_FILE).exists():
        return
    if others := [bundle.name for bundle in battery_folders(folder) if bundle.name not in names]:
        raise BundleError(
            f"{Path(folder) / BATTERY_FILE} also lists {', '.join(others)}, and would not any more; give an output= of "
            "its own"
        )


def require_one_base(bundles: Sequence[Bundle]) -> None:
    """Check that one prefix pass can serve all bundles."""
    if not bundles:
        raise BundleError("there are no bundles to score with; list at least one")
    (policy, count), *_ = Counter(bundle.policy.id for bundle in bundles).most_common(1)
    if count > 1:
        folders = ", ".join(str(bundle.folder) for bundle in bundles if bundle.policy.id == policy)
        raise BundleError(f"{count} bundles answer the policy {policy!r} ({folders}); keep one of them")
    for bundle in bundles[1:]:
        require_one_prefix(bundles[0], bundle)


def require_one_prefix(first: Bundle, bundle: Bundle) -> None:
    """BundleError where a conversation's prefix is not the same for both: another base, or other settings of it."""
    parts = first.manifest.base.fingerprint.differences(bundle.manifest.base.fingerprint)
    if parts:
        raise BundleError(
            f"{bundle.folder} and {first.folder} were made for different bases ({', '.join(parts)} differ), so "
            "they cannot share a pass; score them one by one"
        )
    settings = [name for name, value in _prefix_settings(first).items() if _prefix_settings(bundle)[name] != value]
    if settings:
        raise BundleError(
            f"{bundle.folder} and {first.folder} differ in {', '.join(settings)}, so a conversation's prefix is "
            "not the same for both; score them one by one"
        )


def _prefix_settings(bundle: Bundle) -> dict[str, object]:
    prompt = bundle.manifest.prompt
    return {
        "prompt.layout": prompt.layout,
        "prompt.max_prefix_tokens": prompt.max_prefix_tokens,
        "prompt.truncation": prompt.truncation,
        "base.template_kwargs": dict(bundle.manifest.template_kwargs),
        "data.reasoning": bundle.manifest.reasoning,
        "data.system": bundle.manifest.system,
    }
