"""``alora.json``: what an adapter is for, how it is asked, what it was certified on, and the digest of every file.

``sha256`` at its end is over the manifest's own canonical JSON without that key. It detects accidents and edits; it is
not a signature.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alora.adapter import CONFIG_FILE, WEIGHTS_FILE
from alora.base.fingerprint import Fingerprint
from alora.config.schema import DataSettings, PromptSettings
from alora.errors import BundleError
from alora.evaluation.records import Evaluation
from alora.policy import Policy
from alora.prompt.render import Renderer, Suffix
from alora.received import (
    DAMAGED,
    NOT_OURS,
    FileRecord,
    Folder,
    decode,
    refused,
    require_sealed,
    require_version,
    sealed,
)
from alora.verdict import Dtype, OperatingPoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANIFEST_FILE = "alora.json"
CERTIFICATE_FILE = "identity.json"
GOLDEN_FILE = "golden.jsonl"
CARD_FILE = "README.md"
BUNDLE_FILES = (MANIFEST_FILE, CERTIFICATE_FILE, GOLDEN_FILE, CARD_FILE, CONFIG_FILE, WEIGHTS_FILE)
SCHEMA_VERSION = 1
_REMEDY = "copy or export the bundle again"
_OPTIONAL = ("system_share", "moved", "card")


@dataclass(frozen=True)
class BaseRecord:
    """The base an adapter belongs to. ``source`` is a hub id or "smollm2"; of a ``local`` folder only its name is kept.

    ``dtype`` is what the threshold and the golden rows were computed in; ``chat_template`` is the text of one that the
    base has not of its own.
    """

    source: str
    fingerprint: Fingerprint
    dtype: Dtype
    revision: str | None = None
    local: bool = False
    chat_template: str | None = None


@dataclass(frozen=True)
class CertificateRecord:
    """What ``identity.json`` certifies, and the sha256 of the file; ``vllm`` is the vLLM that certified it too."""

    sha256: str
    passed: bool
    created: str
    dtypes: tuple[str, ...]
    vllm: str | None = None


@dataclass(frozen=True)
class MoveRecord:
    """The parity run of when the bundle was moved: the golden rows' answers on the base in another
    ``quantization`` and ``dtype``, next to those on the base that it was moved to. ``same_verdict``
    counts rows whose verdict is the same, each at the operating point fitted there; ``largest_difference`` is of a
    log-probability over the labels, relative above 1, None where it is not finite.
    """

    quantization: str
    dtype: Dtype
    rows: int
    same_verdict: int
    largest_difference: float | None


@dataclass(frozen=True)
class CardRecord:
    """What only the card says: the adapter's ``license``, the conversations' ``languages``, how it was trained."""

    license: str | None = None
    languages: tuple[str, ...] = ()
    training: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """What is said of an adapter, whichever files it lies in. ``data`` counts rows: split → label → rows;
    ``system_share`` of the training rows have a system turn, None where that is unknown."""

    policy: Policy
    prompt: PromptSettings
    operating_point: OperatingPoint = field(default_factory=OperatingPoint)
    template_kwargs: Mapping[str, bool] = field(default_factory=dict)
    reasoning: Literal["leave_out", "read", "refuse"] = "leave_out"  # of the assistant, in what it reads
    system: Literal["read", "leave_out"] = "read"  # turns of the system
    evaluations: tuple[Evaluation, ...] = ()
    data: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    system_share: float | None = None
    moved: MoveRecord | None = None
    card: CardRecord = field(default_factory=CardRecord)

    @property
    def described(self) -> dict[str, Any]:
        """These fields, to say the same elsewhere."""
        return {item.name: getattr(self, item.name) for item in fields(Description)}

    @property
    def reading(self) -> DataSettings:
        """How conversations are read for it."""
        return DataSettings(reasoning=self.reasoning, system=self.system)

    def renderer(self, tokenizer: "PreTrainedTokenizerBase") -> Renderer:
        """The renderer of its prompts for a base with this tokenizer."""
        return Renderer(tokenizer, self.prompt, dict(self.template_kwargs))


@dataclass(frozen=True, kw_only=True)
class Manifest(Description):
    """Everything in ``alora.json``. ``created`` is UTC, ISO 8601.

    ``sha256`` is that of the file that this was read from, and covers each of the bundle's files by its digest.
    """

    activated: bool
    suffix: Suffix
    base: BaseRecord
    adapter_digest: str
    files: Mapping[str, FileRecord]
    versions: Mapping[str, str]
    created: str
    certificate: CertificateRecord | None
    sha256: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """What each record alone cannot say of itself."""
        labels = self.suffix.label_token_ids
        if len(labels) != len(self.policy.labels) or len(set(labels)) != len(labels):
            raise ValueError("there is not one label token per label")
        # A bundle is flat and has these files; any other name could reach outside, or stand for several (``*``).
        if odd := sorted(self.files.keys() - set(BUNDLE_FILES)):
            raise ValueError(f"file name {odd[0]!r} is none of {', '.join(BUNDLE_FILES)}")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types with the manifest's own digest; :func:`manifest_from_dict` reads it back."""
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION} | asdict(self)
        content["prompt"] |= {name: content.pop(name) for name in ("template_kwargs", "reasoning", "system")}
        content |= {
            "policy": self.policy.as_dict(),
            "operating_point": self.operating_point.as_dict(),
            "evaluations": [evaluation.as_dict() for evaluation in self.evaluations],
        }
        content = json.loads(json.dumps(content, allow_nan=False))  # of tuples lists
        return sealed(content)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"


_FIELDS = tuple(item.name for item in fields(Manifest))


def served_name(policy: str, digest: str) -> str:
    """An adapter's name on a server: ``policy@`` and 12 digits of its weights' digest."""
    return f"{policy}@{digest[:12]}"


class OfManifest:
    """What has a manifest, and goes by what it says."""

    manifest: Manifest

    @property
    def policy(self) -> Policy:
        return self.manifest.policy

    @property
    def suffix(self) -> Suffix:
        """The token ids that ask for its verdict."""
        return self.manifest.suffix

    @property
    def calibration(self) -> OperatingPoint:
        return self.manifest.operating_point

    @cached_property
    def served_name(self) -> str:
        """Its name on a server, which launcher and clients agree on."""
        return served_name(self.policy.id, self.manifest.adapter_digest)


def read_manifest(folder: Path) -> Manifest:
    """Read ``alora.json``."""
    return open_manifest(folder)[1]


def open_manifest(folder: Path) -> tuple[Folder, Manifest]:
    """The files of the bundle in ``folder``, and what its ``alora.json`` says of them."""
    received = Folder(folder, BundleError, _REMEDY)
    if MANIFEST_FILE not in received.files:
        way = "; make one of this adapter with `alora export`" if CONFIG_FILE in received.files else ""
        raise refused(BundleError, NOT_OURS, f"{folder} has no {MANIFEST_FILE}, so it is not a bundle{way}")
    return received, manifest_from_dict(received.json(MANIFEST_FILE), str(folder / MANIFEST_FILE))


def manifest_from_dict(content: Mapping[str, Any], where: str) -> Manifest:
    """Read :meth:`Manifest.as_dict` back; ``where`` names the file in errors."""
    require_version(content, where, BundleError, _REMEDY, "schema_version", SCHEMA_VERSION)
    require_sealed(content, where, BundleError, _REMEDY)
    try:
        prompt = dict(decode(Mapping[str, Any], content["prompt"], "prompt"))
        apart = {
            "template_kwargs": prompt.pop("template_kwargs"),
            "reasoning": prompt.pop("reasoning", "leave_out"),
            "system": prompt.pop("system", "read"),
            "prompt": prompt,
        }
        flat = {**content, **apart}
        # A key that this version does not know is left alone; all but three of its own must be there.
        return decode(Manifest, {name: flat[name] for name in _FIELDS if name in flat or name not in _OPTIONAL})
    except (KeyError, TypeError, ValueError) as error:
        raise refused(
            BundleError, DAMAGED, f"{where} is not a valid manifest: {type(error).__name__}: {error}; {_REMEDY}"
        ) from error
