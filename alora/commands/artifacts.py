"""What ``artifact=`` and ``bundles=`` name, opened: bundles, or an adapter with all that its verdicts depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from alora.bundle.battery import Read
from alora.commands.output import note
from alora.config.schema import BaseSettings, DataSettings, PromptSettings, Recipe
from alora.errors import AdapterError, ConfigError, RunError

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.bundle.artifact import Artifact
    from alora.bundle.light import LightBundle
    from alora.bundle.read import Bundle
    from alora.policy import Policy

NO_BUNDLE = "no bundle is given; add artifact=DIR (a bundle, a run or a battery) or bundles=[A,B]"


@dataclass(frozen=True)
class BareAdapter:
    """An adapter that is no bundle yet. ``run`` is the recipe of the run that it lies in."""

    folder: Path
    base: BaseSettings
    prompt: PromptSettings
    policy: Policy
    run: Recipe | None = None


def open_bundles(recipe: Recipe) -> tuple[list[Bundle], BaseSettings]:
    """:func:`read_bundles` with their weights."""
    from alora.bundle.read import load_bundle

    return read_bundles(recipe, load_bundle)


def read_bundles(recipe: Recipe, read: Callable[[Path], Read]) -> tuple[list[Read], BaseSettings]:
    """The bundles that ``artifact`` and ``bundles`` name (a battery names several), and the base that they share.

    Of a battery, ``policies`` takes only those that it lists.

    Raises:
        ConfigError: neither is given, an artifact holds no bundle, or a battery none of ``policies``.
        BundleError: a bundle is damaged, or they do not share a base.
    """
    from alora.bundle.artifact import Kind, find_artifact
    from alora.bundle.battery import read_battery, require_one_base

    named = [*([recipe.artifact] if recipe.artifact else []), *recipe.bundles]
    if not named:
        raise ConfigError(NO_BUNDLE)
    bundles: list[Read] = []
    bases = []
    for artifact in map(find_artifact, named):
        if artifact.kind is Kind.BATTERY:
            found = chosen(read_battery(artifact.folder, read), recipe.policies, artifact.folder)
        elif artifact.bundle is not None:
            found = [read(artifact.bundle)]
        else:
            raise ConfigError(
                f"{artifact.folder} holds no bundle, and only a bundle knows its threshold; "
                "make one with `alora export`"
            )
        bundles += found
        bases.append(base_of_bundle(found[0], artifact, recipe.base))
    require_one_base(bundles)
    return bundles, bases[0]


def chosen(bundles: list[Read], policies: Sequence[str], battery: Path) -> list[Read]:
    """Those of a battery's bundles that ``policies`` name, all when it names none or ``*``; a remark on what it lacks.

    Raises:
        ConfigError: it has none of them.
    """
    if not policies or "*" in policies:
        return bundles
    known = {bundle.policy.id: bundle for bundle in bundles}
    missing = [name for name in policies if name not in known]
    if len(missing) == len(policies):
        raise ConfigError(f"{battery} has no policy {', '.join(missing)}; it has {', '.join(known)}")
    if missing:
        note(f"{battery} has no policy {', '.join(missing)}; going on without")
    return [bundle for name, bundle in known.items() if name in policies]


def base_of_bundle(bundle: LightBundle, artifact: Artifact, given: BaseSettings) -> BaseSettings:
    """The base to load for ``bundle``: the one given, else the manifest's; of a local one its run knows the place."""
    if given.source is None and bundle.manifest.base.local and artifact.run_file is not None:
        from alora.config.saved import load_recipe

        given = replace(given, source=load_recipe(artifact.run_file).base.source)
    return bundle.base_settings(given)


def base_of_run(given: BaseSettings, saved: BaseSettings) -> BaseSettings:
    """A run's base, unless the command names another; whether its own Python runs is the command's alone to say."""
    base = given if given.source is not None else saved
    quantization = given.quantization or saved.quantization
    return replace(base, quantization=quantization, trust_remote_code=given.trust_remote_code)


def open_adapter(artifact: Artifact, recipe: Recipe) -> BareAdapter:
    """The adapter of a run or a bare PEFT folder; base and policy from its run, unless the command gives its own.

    Raises:
        ConfigError: base or policy are given by neither.
        RunError: the run has no adapter yet.
    """
    from alora.policy import load_policy

    if artifact.adapter is None:
        raise RunError(f"{artifact.folder} holds no adapter yet; run `alora train` on it to the end")
    saved = None
    if artifact.run_file is not None:
        from alora.config.saved import load_recipe

        saved = load_recipe(artifact.run_file)
    settings = recipe.policy if recipe.policy.file or recipe.policy.title else saved and saved.policy
    if settings is None:
        raise ConfigError(f"{artifact.folder} does not say which policy it answers; add policy.file=FILE.yaml")
    base = recipe.base if saved is None else base_of_run(recipe.base, saved.base)
    if base.source is None:
        raise ConfigError(f"{artifact.folder} is a bare adapter; say which base it belongs to with base=...")
    prompt = saved.prompt if saved is not None else recipe.prompt
    policy = load_policy(settings)
    if saved is not None and artifact.run_file is not None:
        _require_trained_policy(policy, artifact.run_file.parent)
        require_trained_kind(artifact.adapter, saved)
    return BareAdapter(artifact.adapter, base, prompt, policy, saved)


def require_trained_kind(adapter: Path, run: Recipe) -> None:
    """AdapterError when the run trained an aLoRA and its folder says no more where it is activated.

    Tools that rewrite a PEFT config delete the key they do not know, and what is left runs as a wrong standard LoRA.
    """
    from alora.adapter.folder import CONFIG_FILE, load_adapter

    if run.adapter.kind == "alora" and not load_adapter(adapter).spec.activated:
        raise AdapterError(
            f"{adapter / CONFIG_FILE}: alora_invocation_tokens is gone, but the run trained an activated LoRA; "
            "copy the original file back"
        )


def _require_trained_policy(policy: Policy, run: Path) -> None:
    """RunError when ``policy`` is not, word for word, the one that the run was trained on."""
    from alora.training.run_folder import trained_on

    record = trained_on(run)
    if record is not None and record.get(f"policy {policy.id}") != repr(policy.as_dict()):
        raise RunError(
            f"policy {policy.id!r} is not the one that {run} was trained on: its text or labels have changed since; "
            "put them back, or train again"
        )


def check_bases(bundles: Sequence[Bundle], base: LoadedBase) -> None:
    """Check every bundle on the loaded base, and remark on a threshold that was fitted in another precision.

    Raises:
        BundleError: the base is not the bundles'.
        CheckFailed: an adapter does not answer its golden rows as it did.
    """
    from alora.bundle.read import check_bundles

    check_bundles(bundles, base)
    dtype = str(base.model.dtype).removeprefix("torch.")
    for bundle in bundles:
        if bundle.manifest.base.dtype != dtype:
            note(
                f"{bundle.policy.id}: its threshold was fitted in {bundle.manifest.base.dtype}, the base runs in "
                f"{dtype}; add base.dtype={bundle.manifest.base.dtype}, or expect small differences"
            )


def data_settings(recipe: Recipe, run: Recipe | None) -> DataSettings:
    """The command's data settings; what they leave open (rows, columns, label map) comes from the run.

    Raises:
        ConfigError: neither names test rows.
    """
    given, unset = recipe.data, DataSettings()
    if run is not None:
        changed = {name: value for name, value in vars(given).items() if value != getattr(unset, name)}
        given = replace(run.data, **changed)
    if given.test is not None:
        return given
    raise ConfigError("there are no rows to evaluate on; add data.test=FILE.jsonl")


def saved_run(artifact: Artifact) -> Recipe | None:
    """The recipe of the run that an artifact lies in, or None."""
    if artifact.run_file is None:
        return None
    from alora.config.saved import load_recipe

    return load_recipe(artifact.run_file)
