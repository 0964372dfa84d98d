"""``alora validate artifact=DIR [output=report.json]``: KV identity of an adapter or bundle against its base.

Of a battery, or a run of one, every bundle is certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from alora.commands.artifacts import base_of_bundle, base_of_run, require_trained_kind
from alora.commands.output import note, report_file, say, say_json, table, write_json
from alora.config.schema import BaseSettings, PromptSettings, Recipe
from alora.errors import AdapterError, BundleError, ConfigError
from alora.reading import read_json

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.bundle.read import Bundle
    from alora.identity.certificate import Certificate, DtypeRecord, ParityRecord
    from alora.policy import Policy
    from alora.prompt.render import Prompt

SHOWN_FAILURES = 10


@dataclass(frozen=True)
class Subject:
    """What is validated: the PEFT folder, its base, and how it is prompted, as far as the artifact tells."""

    folder: Path
    base: BaseSettings
    prompt: PromptSettings
    policy: Policy | None = None
    bundle: Bundle | None = None


def run(recipe: Recipe) -> int:
    """Prove KV identity, print what was checked, write the certificate to ``output``; 0 when it holds, 1 when not."""
    from alora.base.load import load_base
    from alora.bundle.artifact import Kind, find_artifact

    if recipe.artifact is not None and (artifact := find_artifact(recipe.artifact)).kind is Kind.BATTERY:
        from alora.commands.validate_battery import validate_battery

        if recipe.output is not None:
            report_file(recipe.output)
        return validate_battery(recipe, artifact, lambda *given: _certify(recipe, _of_bundle(*given[:2]), given[2]))
    subject = find_subject(recipe)
    output = recipe.output and report_file(recipe.output, subject.folder)
    _require_activated(subject)
    certificate = _certify(recipe, subject, load_base(subject.base))
    if output:
        write_json(output, certificate.as_dict())
    if recipe.json:
        say_json(certificate.as_dict())
    else:
        report(certificate, recipe.output)
    return 0 if certificate.passed else 1


def _require_activated(subject: Subject) -> None:
    from alora.adapter.folder import load_adapter
    from alora.identity.certify import require_activated

    require_activated(load_adapter(subject.folder), subject.folder)


def _certify(recipe: Recipe, subject: Subject, base: LoadedBase) -> Certificate:
    """The certificate of one adapter on the loaded base, by the engine that the recipe names.

    Raises:
        CheckFailed: it is a plain LoRA.
        BundleError: it belongs to another base.
    """
    from alora.adapter.folder import load_adapter
    from alora.base.load import base_location
    from alora.bundle.read import check_bundles
    from alora.identity.certify import certify

    _require_activated(subject)
    weights = load_adapter(subject.folder)
    if subject.bundle is not None:
        check_bundles([subject.bundle], base, rows=None)
    prompts = make_prompts(recipe, subject, base, weights.spec.invocation_ids or ())
    if recipe.engine == "vllm":
        from alora.serving.engine import require_unquantized
        from alora.serving.prove import certify_in_vllm

        require_unquantized(base)
        location, controls = base_location(subject.base), recipe.identity.negative_controls
        certificate = certify_in_vllm(base, location, weights, prompts, controls, subject.bundle)
        if subject.bundle is not None and certificate.passed and controls:
            keep_proof(subject.bundle, certificate)
        return certificate
    return certify(base, subject.folder, prompts, recipe.identity)


def keep_proof(bundle: Bundle, proof: Certificate) -> None:
    """Write what vLLM has proven into the bundle's own certificate; a bundle that cannot be written stays as it is."""
    from alora.bundle.proof import add_vllm_proof

    try:
        add_vllm_proof(bundle, proof)
    except BundleError as error:
        note(f"the proof is not in the bundle's certificate: {error}")
    else:
        note(f"the proof is in {bundle.folder / 'identity.json'}, section 'vllm'")


def find_subject(recipe: Recipe) -> Subject:
    """Read what lies at ``artifact``: a run folder, a bundle or an adapter folder. A given ``base`` wins over its own.

    Raises:
        ConfigError, AdapterError, BundleError: there is no artifact, it is none of the three, or names no base.
    """
    from alora.bundle.artifact import find_artifact
    from alora.bundle.read import load_bundle

    if recipe.artifact is None:
        raise ConfigError("alora validate needs artifact=DIR: a run folder, an adapter folder or a bundle")
    artifact = find_artifact(recipe.artifact)
    if artifact.bundle is not None:
        bundle = load_bundle(artifact.bundle)
        return _of_bundle(bundle, base_of_bundle(bundle, artifact, recipe.base))
    if artifact.adapter is None:
        raise BundleError(f"{artifact.folder} holds no adapter yet; run `alora train` on it to the end")
    if artifact.run_file is not None:
        return _of_run(artifact.adapter, artifact.run_file, recipe)
    source = recipe.base.source or _named_base(artifact.adapter / "adapter_config.json")
    return Subject(artifact.adapter, replace(recipe.base, source=source), recipe.prompt, _given_policy(recipe))


def _of_bundle(bundle: Bundle, settings: BaseSettings) -> Subject:
    return Subject(bundle.folder, settings, bundle.manifest.prompt, bundle.policy, bundle)


def _of_run(adapter: Path, run_file: Path, recipe: Recipe) -> Subject:
    from alora.config.saved import load_recipe

    saved = load_recipe(run_file)
    require_trained_kind(adapter, saved)
    return Subject(
        adapter, base_of_run(recipe.base, saved.base), saved.prompt, _given_policy(recipe) or _given_policy(saved)
    )


def _named_base(config_file: Path) -> str:
    config = read_json(config_file, AdapterError, "export the adapter again")
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not named:
        raise AdapterError(f"{config_file} names no base; add base=... or base.source=ID_OR_FOLDER")
    return str(named)


def _given_policy(recipe: Recipe) -> Policy | None:
    if recipe.policy.file is None and recipe.policy.title is None:
        return None
    from alora.policy import load_policy

    return load_policy(recipe.policy)


def make_prompts(recipe: Recipe, subject: Subject, base: LoadedBase, invocation_ids: Sequence[int]) -> list[Prompt]:
    """``identity.conversations`` prompts: rows of ``data.test`` where it is given, else conversations of alora's own.

    Raises:
        ConfigError: ``data.test`` is given, but no policy that its labels belong to.
    """
    from alora.data.conversation import read_labelled
    from alora.identity.probes import bare_suffix, identity_probes
    from alora.prompt.render import Prompt, Renderer

    count = recipe.identity.conversations
    if recipe.data.test is None:
        conversations = identity_probes(count)
    elif subject.policy is None:
        raise ConfigError("data.test is given without the policy of its labels; add policy.file=FILE, or leave it out")
    else:
        rows = read_labelled(recipe.data.test, recipe.data, subject.policy)
        conversations = [row.conversation for row in rows[:count]]
    renderer = Renderer(base.tokenizer, subject.prompt, subject.base.template_kwargs)
    prefixes = [renderer.prefix(conversation) for conversation in conversations]
    suffix = renderer.suffix(subject.policy) if subject.policy else bare_suffix(invocation_ids, prefixes[0])
    return [Prompt(prefix, suffix) for prefix in prefixes]


def report(certificate: Certificate, output: str | None = None) -> None:
    """Print the table of checks by dtype, what failed first, and the outcome in one line."""
    rows = [row for record in certificate.dtypes for row in _rows(record, certificate.engine)]
    if certificate.parity is not None:
        rows += _parity_rows(certificate.parity)
    table(("check", "dtype", "result"), rows)
    say()
    failures = certificate.failures
    for line in failures[:SHOWN_FAILURES]:
        say(line)
    if len(failures) > SHOWN_FAILURES:
        say(f"and {len(failures) - SHOWN_FAILURES} more")
    for remark in certificate.notes:
        say(f"note: {remark}")
    outcome = "holds" if certificate.passed else "FAILS"
    digest, where = certificate.adapter_digest[:12], f"; report: {output}" if output else ""
    named = certificate.base_source
    if certificate.base.quantization != "none":
        named += f" in {certificate.base.quantization}"
    say(f"KV identity {outcome}: adapter {digest} on base {named}, {certificate.engine}{where}")


def _rows(record: DtypeRecord, engine: str) -> list[tuple[str, str, str]]:
    from alora.identity.certify import ENGINE

    seen = {finding.check for finding in record.findings}
    compared = sum(layer.prefix_elements for layer in record.layers)
    reached = sum(layer.must_differ for layer in record.layers)
    changed = sum(one.prefix_changed for one in record.handovers)
    errors = [one.logits_error for one in record.handovers]
    worst = "not finite" if None in errors else f"{max((e for e in errors if e is not None), default=0.0):.1e}"
    far = any(one.logits_error is None or one.logits_error > one.bound for one in record.handovers)
    checks = [
        ("the base repeats itself", "repeat" not in seen, ""),
        ("prefix equal as integers", "prefix" not in seen, f"{compared} elements"),
        ("difference at the activation token", "activation" not in seen, f"{reached} tensors must"),
    ]
    if engine == ENGINE:
        checks += [
            ("PEFT's search finds the activation", "search" not in seen, ""),
            ("cached prefix unchanged by the adapter", not changed, f"{len(record.handovers)} prompts"),
            ("logits after the cached prefix", not far, f"relative error {worst}"),
        ]
    else:
        checks.append(("cached prefix unchanged by the adapter", "handover" not in seen, ""))
    lines = [(name, record.dtype, _outcome("ok" if good else "FAILED", extra)) for name, good, extra in checks]
    return lines + [
        (f"control: {one.name}", record.dtype, _outcome("caught" if one.caught else "NOT CAUGHT", ""))
        for one in record.controls
    ]


def _parity_rows(parity: ParityRecord) -> list[tuple[str, str, str]]:
    far = parity.difference is None or parity.difference > parity.tolerance
    found = "not finite" if parity.difference is None else f"{parity.difference:.1e}"
    extra = f"{parity.rows} rows, largest difference {found}, tolerance {parity.tolerance:g}"
    return [
        ("the golden rows' answers", parity.dtype, _outcome("FAILED" if far else "ok", extra)),
        *(
            (f"golden control: {one.name}", parity.dtype, "caught" if one.caught else "NOT CAUGHT")
            for one in parity.controls
        ),
    ]


def _outcome(word: str, extra: str) -> str:
    return f"{word} ({extra})" if extra else word
