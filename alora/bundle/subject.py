"""What ``artifact=`` names, opened: adapters and bundles, with all that their verdicts depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from alora.adapter import CONFIG_FILE
from alora.adapter.folder import AdapterWeights, load_adapter
from alora.base.load import LoadedBase, load_base
from alora.bundle.artifact import Artifact, base_of_bundle, is_chosen, saved_run
from alora.bundle.light import require_base
from alora.bundle.manifest import MANIFEST_FILE
from alora.bundle.read import Bundle, load_bundle
from alora.config.schema import BaseSettings, PolicySettings, PromptSettings, Recipe
from alora.data.conversation import Conversation
from alora.errors import AdapterError, ConfigError, RunError
from alora.identity.capture import bare_suffix
from alora.policy import Policy, load_policies, read_policies
from alora.prompt.render import Prompt, Renderer, Suffix
from alora.text import read_json
from alora.training.layout import TRAINING, home_of
from alora.training.run_folder import Claim, open_claim
from alora.training.standings import require_trained


@dataclass(frozen=True)
class Subject:
    """One adapter that the user named. Only a bundle has an operating point; a bare adapter may have no policy.

    ``claim`` is that of the run which a bare adapter belongs to.
    """

    folder: Path
    weights: AdapterWeights
    base: BaseSettings
    prompt: PromptSettings
    policy: Policy | None
    bundle: Bundle | None = None
    claim: Claim | None = None

    def load_base(self) -> LoadedBase:
        """Its base; BundleError where that is not the one that its run was trained on. A bundle checks its own."""
        base = load_base(self.base)
        self.require_base_of_run(base)
        return base

    def require_base_of_run(self, base: LoadedBase) -> None:
        """BundleError where its run was trained on another base."""
        if self.claim is not None:
            require_base(self.folder, self.claim.base, self.claim.settings["base"]["source"], base)

    def prompts(self, base: LoadedBase, conversations: Sequence[Conversation]) -> list[Prompt]:
        """What it is asked on ``base``; where it has no policy, the invocation stands alone."""
        renderer = Renderer(base.tokenizer, self.prompt, self.base.template_kwargs)
        prefixes = [renderer.prefix(conversation) for conversation in conversations]
        invocation_ids = self.weights.spec.invocation_ids or ()
        suffix = renderer.suffix(self.policy) if self.policy else bare_suffix(invocation_ids, prefixes[0])
        return [Prompt(prefix, suffix) for prefix in prefixes]

    def require_policy(self) -> Policy:
        """Its policy; ConfigError when neither the artifact nor the command says which one it answers."""
        if self.policy is None:
            raise ConfigError(f"{self.folder} does not say which policy it answers; add policy.file=FILE.yaml")
        return self.policy

    def suffix(self, renderer: Renderer) -> Suffix:
        """The token ids that ask for its verdict; ConfigError when they do not invoke it."""
        if self.bundle is not None:
            return self.bundle.suffix
        suffix, invoked_by = renderer.suffix(self.require_policy()), self.weights.spec.invocation_ids
        if invoked_by is not None and invoked_by != suffix.invocation_ids:
            raise ConfigError(
                f"{self.folder} is invoked by the tokens {list(invoked_by)}, but suffixes on this base begin with "
                f"{list(suffix.invocation_ids)}; give the base and prompt settings of its training"
            )
        return suffix


def open_subject(folder: Path, artifact: Artifact, recipe: Recipe) -> Subject:
    """The bundle or adapter in ``folder``, a member of ``artifact``; its run or the command has what it leaves open."""
    if (folder / MANIFEST_FILE).is_file():
        bundle = load_bundle(folder)
        base = base_of_bundle(bundle, artifact, recipe.base)
        require_own(recipe, artifact, folder, bundle.manifest.prompt, bundle.manifest.template_kwargs, bundle.policy)
        return Subject(folder, bundle.weights, base, bundle.manifest.prompt, bundle.policy, bundle)
    weights, run = load_adapter(folder), saved_run(artifact)
    asked = run is None or any(key.startswith("policy.") for key in recipe.given)  # a recipe next to a run is not
    policy = _named(recipe.policy, home_of(folder).name) if asked else None
    policy = policy or (None if run is None else _of_run(folder, run))
    if run is None or artifact.run is None:
        source = recipe.base.source or _named_base(folder / CONFIG_FILE)
        return Subject(folder, weights, replace(recipe.base, source=source), recipe.prompt, policy)
    if run.adapter.kind == "alora" and not weights.spec.activated:  # tools delete the key that they do not know
        raise AdapterError(
            f"{folder / CONFIG_FILE}: alora_invocation_tokens is gone, but the run trained an activated LoRA; "
            "copy the original file back"
        )
    claim = open_claim(artifact.run, run)
    home = home_of(folder)
    require_trained(home / TRAINING, home.name if policy is None else policy.id, weights.digest)
    if policy is not None and claim.inputs.get(f"policy {policy.id}") != repr(policy.as_dict()):
        raise RunError(
            f"policy {policy.id!r} is not the one that {artifact.run} was trained on: its text or labels have changed "
            "since; put them back, or train again"
        )
    base = recipe.base if recipe.base.source is not None else run.base
    quantization = recipe.base.quantization or run.base.quantization
    chat_template = recipe.base.chat_template or run.base.chat_template
    # Whether the base's own Python runs is the command's alone to say.
    trust, kwargs = recipe.base.trust_remote_code, run.base.template_kwargs
    base = replace(
        base, quantization=quantization, chat_template=chat_template, trust_remote_code=trust, template_kwargs=kwargs
    )
    require_own(recipe, artifact, folder, run.prompt, kwargs, policy)
    return Subject(folder, weights, base, run.prompt, policy, claim=claim)


def require_own(
    recipe: Recipe,
    artifact: Artifact,
    folder: Path,
    prompt: PromptSettings,
    template_kwargs: Mapping[str, bool],
    policy: Policy | None,
) -> None:
    """ConfigError where the command line spells out something else than what the adapter in ``folder``, a member of
    ``artifact``, was trained with, by which alone it is read."""
    given = recipe.given
    other = [
        f"prompt.{name}"
        for name, own in vars(prompt).items()
        if f"prompt.{name}" in given and getattr(recipe.prompt, name) != own
    ]
    spelt = any(key.startswith("base.template_kwargs") for key in given)
    other += ["base.template_kwargs"] if spelt and recipe.base.template_kwargs != dict(template_kwargs) else []
    if policy is not None and is_chosen(policy.id, recipe.policies):
        mine = _named(recipe.policy, policy.id) if any(key.startswith("policy.") for key in given) else None
        other += ["policy"] if mine is not None and mine.as_dict() != policy.as_dict() else []
        other += ["policy.id"] if "policy.id" in given and recipe.policy.id not in (None, policy.id) else []
    if other:
        raise ConfigError(
            f"{', '.join(other)}: {folder} keeps to what it was trained with; leave that out, or train again with it"
        )


def _named(settings: PolicySettings, wanted: str) -> Policy | None:
    """The policy that the settings name: of a file the ``wanted`` one where it is there; None where they name none."""
    if settings.file is not None and wanted in [policy.id for policy in read_policies(settings.file)]:
        return load_policies(replace(settings, id=wanted))[0]
    return load_policies(settings)[0] if settings.file or settings.title else None


def _of_run(folder: Path, run: Recipe) -> Policy | None:
    """The policy that a run's adapter in ``folder`` answers: the run's only one, or the one with the folder's name."""
    if not run.policies:
        return _named(run.policy, home_of(folder).name)
    known = {policy.id: policy for policy in load_policies(run.policy, run.policies)}
    return known.get(home_of(folder).name)


def _named_base(config_file: Path) -> str:
    config = read_json(config_file, AdapterError, "export the adapter again")
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not named:
        raise AdapterError(f"{config_file} names no base; add base=... or base.source=ID_OR_FOLDER")
    return str(named)
