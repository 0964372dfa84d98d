"""``alora validate artifact=DIR [output=report.json]``: KV identity of adapters or bundles against their base.

Of a battery, or a run of several policies, every bundle is certified: one that fails is named, and the others go on.
"""

from collections.abc import Mapping

from alora.atomic import write_json
from alora.base.load import LoadedBase
from alora.base.location import base_location
from alora.bundle.artifact import Artifact, chosen, find_artifact, members_by_policy
from alora.bundle.move import add_vllm_certificate
from alora.bundle.read import Bundle, check_bundles
from alora.bundle.run_rows import settings_as_trained
from alora.bundle.subject import Subject, open_subject
from alora.client.certify_in_vllm import certify_in_vllm
from alora.client.engine import require_unquantized
from alora.commands.output import report_file, say, say_json, table
from alora.config.schema import Recipe
from alora.data.labelled import read_labelled
from alora.data.splits import source_of
from alora.errors import BundleError, ConfigError, LeftOut
from alora.identity.capture import identity_probes
from alora.identity.certificate import Certificate, check_rows
from alora.identity.certify import certify, require_activated
from alora.prompt.render import Prompt
from alora.text import note
from alora.training.layout import home_of

SHOWN_FAILURES = 10


def run(recipe: Recipe) -> int:
    """Certify KV identity, print what was checked, write it to ``output``; 0 when it holds for all, 1 when not."""
    artifact = find_artifact(str(recipe.artifact))
    folders = chosen(members_by_policy(artifact), recipe.policies, artifact, all_of=True)
    homes = () if artifact.several else (home for folder in folders.values() for home in (folder, home_of(folder)))
    output = recipe.output and report_file(recipe.output, *homes)
    base: LoadedBase | None = None

    def certify_one(name: str) -> Certificate:
        nonlocal base
        subject = open_subject(folders[name], artifact, recipe)
        require_activated(subject.weights, subject.folder)
        base = base or subject.load_base()
        note(f"certifying {name}")
        return _certify(recipe, artifact, subject, base)

    left_out = LeftOut()
    certificates = left_out.each(folders, certify_one)
    left_out.require_some(folders)
    failures = {name: str(error) for name, error in left_out.items()}
    failures |= {name: "; ".join(one.failures[:3]) for name, one in certificates.items() if not one.passed}
    only = None if artifact.several else certificates[next(iter(folders))]
    documents = {name: certificate.as_dict() for name, certificate in certificates.items()}
    of_all = {"passed": not failures, "failures": failures, "certificates": documents}
    document = of_all if only is None else only.as_dict()
    if output:
        write_json(output, document)
    if recipe.json:
        say_json(document)
    elif only is None:
        _show_all(certificates, failures, recipe.output)
    else:
        _show(only, recipe.output)
    return int(bool(failures))


def _certify(recipe: Recipe, artifact: Artifact, subject: Subject, base: LoadedBase) -> Certificate:
    """The certificate of one adapter on the loaded base, by the scorer that the recipe names."""
    if subject.bundle is not None:
        check_bundles([subject.bundle], base, rows=None)
    prompts = _prompts(recipe, artifact, subject, base)
    if recipe.scorer != "vllm":
        return certify(base, subject.folder, prompts, recipe.identity)
    require_unquantized(base)
    location, controls = base_location(subject.base), recipe.identity.negative_controls
    certificate = certify_in_vllm(base, location, subject.weights, prompts, controls, subject.bundle)
    if subject.bundle is not None and certificate.passed and controls:
        _keep(subject.bundle, certificate)
    return certificate


def _keep(bundle: Bundle, certificate: Certificate) -> None:
    """Add vLLM's certificate to the bundle's own; a bundle that cannot be written stays as it is."""
    try:
        add_vllm_certificate(bundle, certificate)
    except BundleError as error:
        note(f"vLLM's certificate is not in the bundle: {error}")
    else:
        note(f"vLLM's certificate is in {bundle.folder / 'identity.json'}, section 'vllm'")


def _prompts(recipe: Recipe, artifact: Artifact, subject: Subject, base: LoadedBase) -> list[Prompt]:
    """``identity.conversations`` prompts: rows of ``data.test``, or else conversations of alora's own."""
    count = recipe.identity.conversations
    if recipe.data.test is None:
        conversations = identity_probes(count)
    elif subject.policy is None:
        raise ConfigError("data.test is given without the policy of its labels; add policy.file=FILE, or leave it out")
    else:
        source = source_of(recipe.data.test, subject.policy)
        rows = read_labelled(source, settings_as_trained(recipe, artifact), subject.policy, use="test")
        conversations = [row.conversation for row in rows[:count]]
    return subject.prompts(base, conversations)


def _show(certificate: Certificate, output: str | None) -> None:
    """The table of checks by dtype, what failed first, and the outcome in one line."""
    table(("check", "dtype", "result"), check_rows(certificate))
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


def _show_all(certificates: Mapping[str, Certificate], failures: Mapping[str, str], output: str | None) -> None:
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
