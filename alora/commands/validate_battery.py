"""KV identity of a whole battery: one base in memory, one certificate for each bundle, one report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alora.base.load import LoadedBase, load_base
from alora.bundle.artifact import Artifact
from alora.bundle.battery import battery_folders
from alora.bundle.read import Bundle, load_bundle
from alora.commands.artifacts import base_of_bundle
from alora.commands.output import note, say, say_json, table, write_json
from alora.config.schema import BaseSettings, Recipe
from alora.errors import AloraError, ConfigError

if TYPE_CHECKING:
    from alora.identity.certificate import Certificate

Certify = Callable[[Bundle, BaseSettings, LoadedBase], "Certificate"]


def validate_battery(recipe: Recipe, artifact: Artifact, certify: Certify) -> int:
    """Certify every bundle that ``policies`` names (none: all); one that fails is named, and the others go on.

    Returns:
        0 when all hold, else 1.

    Raises:
        ConfigError: the battery lacks one of ``policies``.
        BundleError: its list cannot be read.
    """
    base: LoadedBase | None = None
    certificates: dict[str, Certificate] = {}
    failures: dict[str, str] = {}
    for folder in _chosen(recipe.policies, battery_folders(artifact.folder)):
        note(f"certifying {folder.name}")
        try:
            bundle = load_bundle(folder)
            settings = base_of_bundle(bundle, artifact, recipe.base)
            base = base or load_base(settings)
            certificates[folder.name] = certificate = certify(bundle, settings, base)
        except AloraError as error:
            failures[folder.name] = str(error)
            continue
        if not certificate.passed:
            failures[folder.name] = "; ".join(certificate.failures[:3])
    document = {
        "passed": not failures,
        "failures": failures,
        "certificates": {name: certificate.as_dict() for name, certificate in certificates.items()},
    }
    if recipe.output is not None:
        write_json(recipe.output, document)
    if recipe.json:
        say_json(document)
    else:
        _show(certificates, failures, recipe.output)
    return int(bool(failures))


def _chosen(policies: Sequence[str], folders: list[Path]) -> list[Path]:
    if not policies or "*" in policies:
        return folders
    missing = sorted(set(policies) - {folder.name for folder in folders})
    if missing:
        names = ", ".join(folder.name for folder in folders)
        raise ConfigError(f"the battery has no bundle {', '.join(missing)}; it has {names}")
    return [folder for folder in folders if folder.name in policies]


def _show(certificates: Mapping[str, Certificate], failures: Mapping[str, str], output: str | None) -> None:
    rows = []
    for name in dict.fromkeys([*certificates, *failures]):
        certificate = certificates.get(name)
        records = certificate.dtypes if certificate else ()
        caught = [control.caught for record in records for control in record.controls]
        compared = sum(layer.prefix_elements for record in records for layer in record.layers)
        outcome = "FAILS" if name in failures else "holds"
        dtypes = ", ".join(record.dtype for record in records)
        digest = certificate.adapter_digest[:12] if certificate else None
        rows.append((name, outcome, dtypes, compared, f"{sum(caught)} of {len(caught)}", digest))
    table(("policy", "KV identity", "dtypes", "elements compared", "controls caught", "adapter"), rows)
    say()
    for name, reason in failures.items():
        say(f"{name}: {reason}")
    where = f"; report: {output}" if output else ""
    say(f"KV identity holds for {len(rows) - len(failures)} of {len(rows)} adapters{where}")
