"""Untrusted text → token ids, with no way to write a control token.

A tokenizer turns ``<|im_end|>`` inside a message into the token that ends a turn. :class:`TextEncoder` encodes through
a copy of the tokenizer that does not know such tokens: they are taken off the list of added tokens and out of the
model's own vocabulary and merges, so that no text can produce them. The text itself is kept:
``<|im_end|>`` becomes the ordinary tokens of ``<``, ``|``, ``im``, and so on.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from alora.errors import RenderError, first_line, is_panic

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

LONG = 10_000  # characters that take a few milliseconds
METASPACE = "▁"
_encoders: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[Any, int, TextEncoder]]" = WeakKeyDictionary()


class TextEncoder:
    """Encodes hostile text.

    ``forbidden`` holds the ids that never come out: every added token, special or not (``<think>``, ``<tool_call>``),
    but for two kinds. Runs of white space that a family keeps as added tokens (Gemma's newlines) mean nothing to a
    chat template, and the unknown token of a vocabulary without byte fallback is all that vocabulary has for them.

    Raises:
        RenderError: the tokenizer has no fast backend to copy, or the copy still writes a control token.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._name = tokenizer.name_or_path or type(tokenizer).__name__
        backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise RenderError(
                f"the tokenizer of {self._name} is {type(tokenizer).__name__}, which has no fast (Rust) backend; "
                "alora needs one to keep control tokens out of conversations: use a base that ships tokenizer.json"
            )
        with panics_refused(self._name):
            self._make(backend)

    def _make(self, backend: "Tokenizer") -> None:
        try:
            state = json.loads(backend.to_str())
            control, harmless = _control_of(state)
            self._backend = type(backend).from_str(json.dumps(_without(state, set(control), harmless)))
        except Exception as error:  # the Rust library raises no class of its own
            raise RenderError(
                f"the tokenizer of {self._name} does not work without its control tokens: {first_line(error)}; use the "
                "base's original files, or another base"
            ) from error
        self.forbidden = frozenset(control.values())
        for text in control:
            self.encode(text)

    def encode(self, text: str) -> list[int]:
        """The token ids of ``text``, which is never read as markup; no BOS, no EOS.

        Raises:
            RenderError: the text is not Unicode (a lone surrogate), the tokenizer would drop a part of it silently, or
                a control token came out after all.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RenderError(
                f"the text has a lone surrogate at character {error.start}, which is not Unicode text; replace it"
            ) from None
        with panics_refused(self._name):
            if len(text) > LONG:  # lets other threads run meanwhile, which encode() does not
                (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
            else:
                encoding = self._backend.encode(text, add_special_tokens=False)
        if _has_gap(text, encoding.offsets):
            self._refuse_dropped(text)
        ids: list[int] = encoding.ids
        if not self.forbidden.isdisjoint(ids):
            control = sorted({self._backend.id_to_token(index) or str(index) for index in self.forbidden & set(ids)})
            raise RenderError(
                f"the tokenizer of {self._name} writes control tokens {control} for plain text; report it"
            )
        return ids

    def _refuse_dropped(self, text: str) -> None:
        """Refuse a text with characters that have no token; the normalizer may compose or remove some, by design."""
        if self._backend.normalizer is not None:
            text = self._backend.normalizer.normalize_str(text)
        alone = (char for char in dict.fromkeys(text) if not char.isspace())
        if lost := [char for char in alone if not self._bare.encode(char, add_special_tokens=False).ids]:
            raise RenderError(
                f"the tokenizer of {self._name} has no token for {''.join(lost[:20])!r} and would drop it silently; "
                "use a base whose tokenizer falls back to bytes"
            )

    @cached_property
    def _bare(self) -> "Tokenizer":
        """The backend without its normalizer."""
        return type(self._backend).from_str(json.dumps({**json.loads(self._backend.to_str()), "normalizer": None}))


@contextmanager
def panics_refused(name: str) -> Iterator[None]:
    """RenderError for a panic in Rust, which is not an ``Exception``: a regex of ``tokenizer.json`` that gives up."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RenderError(
            f"the tokenizer of {name} breaks off on a text: {first_line(error)}; its tokenizer.json holds a pattern "
            "that cannot be run: use the base's original files, or another base"
        ) from error


def text_encoder(tokenizer: "PreTrainedTokenizerBase") -> TextEncoder:
    """The encoder of ``tokenizer``, made once: a battery has a renderer for each bundle, and a copy takes a second."""
    backend, size = getattr(tokenizer, "backend_tokenizer", None), len(tokenizer)
    known = _encoders.get(tokenizer)
    if known is None or known[0] is not backend or known[1] != size:
        known = _encoders[tokenizer] = (backend, size, TextEncoder(tokenizer))
    return known[2]


def _has_gap(text: str, offsets: list[tuple[int, int]]) -> bool:
    """Whether some character belongs to no token, as far as offsets tell."""
    end = 0
    for start, stop in offsets:
        if start > end:
            return True
        end = max(end, stop)
    return end < len(text)


def _is_blank(text: str) -> bool:
    return not text.replace(METASPACE, " ").strip()


def _control_of(state: dict[str, Any]) -> tuple[dict[str, int], set[str]]:
    """The added tokens that conversations may not hold, with their ids, and the harmless ones."""
    added = {token["content"]: token["id"] for token in state["added_tokens"]}
    harmless = {t["content"] for t in state["added_tokens"] if not t["special"] and _is_blank(t["content"])}
    return {text: index for text, index in added.items() if text not in harmless | _needed_unknown(state)}, harmless


def _needed_unknown(state: dict[str, Any]) -> set[str]:
    """The unknown token, unless every byte has a token of its own, in which case nothing is ever unknown."""
    model = state["model"]
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in _pieces(model) for byte in range(256)):
        return set()
    if model["type"] == "Unigram":
        return set() if model.get("unk_id") is None else {model["vocab"][model["unk_id"]][0]}
    return {model["unk_token"]} if model.get("unk_token") else set()


def _pieces(model: dict[str, Any]) -> set[str]:
    return {piece for piece, _ in model["vocab"]} if isinstance(model["vocab"], list) else set(model["vocab"])


def _without(state: dict[str, Any], control: set[str], harmless: set[str]) -> dict[str, Any]:
    """The tokenizer's JSON without the ``control`` tokens; ids of everything else stay.

    Added tokens that are ``harmless`` stay only if the model's vocabulary holds them: the others' ids follow from
    their order, which has changed, and ordinary tokens spell them as well.
    """
    model = dict(state["model"])
    if isinstance(model["vocab"], list):  # Unigram: an id is a position, so a piece is renamed, not removed
        model["vocab"] = [
            [f"\x00{index}\x00" if piece in control else piece, score]
            for index, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        model["vocab"] = {piece: index for piece, index in model["vocab"].items() if piece not in control}
    if control & {model.get("unk_token")}:
        model["unk_token"] = None
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not {*pair, pair[0] + pair[1]} & control]
    kept = [token for token in state["added_tokens"] if token["content"] in harmless & _pieces(state["model"])]
    return {**state, "model": model, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
