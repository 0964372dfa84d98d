"""A conversation in one text: its turns, by the names or markers that open them."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from alora.data.roles import SPEAKERS, role_of, speaker_role

# A time stamp before a speaker, or none: "[10:00]", "2024-05-01T10:00Z |", "Mon 5/1/24, 10:00 PM -".
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}[.,]{0,2}[ \t])?+"
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d\d(?:\d\d)?)"
_TIME = r"\d{1,2}:\d\d(?:[:.,]\d{1,6}){0,2}(?:[^\S\n]?[AaPp]\.?[Mm]\.?|[ \t]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_WHEN = rf"{_DAY}(?:{_DATE}(?:[,T \t]{{1,2}}{_TIME})?|{_TIME}(?:,?[ \t]{_DATE})?)"
_STAMP = rf"(?>(?:[\[(]{_WHEN}[\])]|{_WHEN}(?=[ \t]))[ \t]{{0,4}}(?:[-–—|][ \t]{{1,4}})?)?+"
_LINE = r"(?:^|(?<=[\r\x0b\x0c\x85\u2028\u2029]))[ \t\xa0\u202f\u3000\u200e\ufeff]*"  # where one begins
_COLON = r"[ \t\xa0\u202f]{0,2}[:：]"
_NAME = r"(?P<name>[^\W_](?:[^\n:：<>\[\]|*]{0,38}[^\s:：<>\[\]|*_])?)"
_DECOR = r"(?:\*\*|__|[*_>\[–—]|#{1,6}[ ])?[ ]?"
_TURN = r"[ \t]*(?P<name>[A-Za-z]{2,20})[ \t]*"
_WORD = r"(?P<name>[^\W\d_][\w .-]{0,30})"
_BEGIN = (
    r"<s>|<\|begin_of_text\|>|<bos>|<｜begin▁of▁sentence｜>|<BOS_TOKEN>|<\|START_OF_TURN_TOKEN\|>|\[INST\]\s*(?=<<)"
)
# gpt-oss's calls of tools and their answers
_CALL = re.compile(
    r"<\|start\|>assistant(?:<\|channel\|>commentary)? to=(?:functions\.)?([\w.-]{1,64})"
    r"(?:<\|channel\|>commentary)?[^<]{0,20}(?:<\|constrain\|>\w{1,20})?<\|message\|>((?:[^<]|<(?!\|))*+)<\|call\|>"
)
_CALLED = re.compile(r"<\|start\|>[\w.-]{1,64} to=assistant(?:<\|channel\|>commentary)?<\|message\|>")
_OPENED = re.compile(rf"(?:\s|{_BEGIN})*")
# How turns are marked: what opens one, and what may close it.
_MARKERS = re.compile(
    rf"<(?:\|im_start\||start_of_turn)>{_TURN}(?:\n|$)|<\|start\|>{_TURN}(?=<\|channel\|>analysis<\|message\|>)"
    rf"|<\|(?:start(?:_header_id|_of_role)?|header_start|im_[a-z]+)\|>{_TURN}(?:<\|channel\|>(?:final|commentary))?"
    rf"<\|(?:end_header_id|end_of_role|header_end|im_middle|message)\|>"
    rf"|<[|｜]{_TURN}(?:_TOKEN|_start)?[|｜]>|\[(/?INST)\](?!\s*<<)|<<(/?SYS)>>".replace("?P<name>", "")
)
_END = (
    r"<\|(?:\w*end|eot|eot_id|return|end_?of_?text|[A-Z]+_OF_TURN_TOKEN)\|>|<end_of_turn>|</?s>|<｜end▁of▁sentence｜>"
)
_HTML_TAG = r"</?(?:br|p|b|strong|div|li)\b[^<>\n]*>"
_STYLES = {
    "marker": (_MARKERS, re.compile(rf"(?:{_END})\s*")),
    "tag": (
        re.compile(rf"<(?:{_WORD}|\w{{1,20}}[ ](?:role|speaker|from|name|author)=[\"']?([\w .-]{{1,30}})[\"']?)>"),
        re.compile(r"</[^<>\n]{1,32}>\s*$"),
    ),
    "bracket": (re.compile(rf"{_LINE}{_STAMP}\[{_WORD}\][ \t]*[:：]?", re.MULTILINE), None),
    "heading": (re.compile(rf"{_LINE}\#{{1,6}}[ \t]+{_WORD}[ \t]*(?:[:：]|$)", re.MULTILINE), None),
    "line": (re.compile(rf"{_LINE}{_STAMP}{_DECOR}{_NAME}[*_\]]{{0,2}}{_COLON}(?!//)[*_]{{0,2}}", re.MULTILINE), None),
}
_HTML = {"a", "b", "i", "p", "u", "em", "li", "ol", "ul", "td",
         "th", "tr", "div", "span", "code", "pre", "body", "think"}  # fmt: skip
_NO_NAMES = {"from", "to", "cc", "bcc", "subject", "date", "sent", "re", "fw", "note", "ps",
             "end", "endoftext", "eot", "return"}  # fmt: skip
_INST = {"INST": "user", "/INST": "assistant", "SYS": "system", "/SYS": "user"}
_LOOSE_END = re.compile(rf"(?:{_HTML_TAG}|</s>)\s*\Z")
_WORDS = 4  # of a speaker's name, and no sentence


def split(text: str, role_map: Mapping[str, str]) -> list[dict[str, str]]:
    """The turns of a transcript, whose text opens with a speaker that is known; none for any other text."""
    first, text = list[dict[str, str]](), _plain(text)
    for style in (*_STYLES, "loose"):
        ends = _LOOSE_END if style == "loose" else _STYLES[style][1]
        found = [(m, role) for m, name in _openers(style, text, role_map) if (role := _role(style, name, role_map))]
        opens = _OPENED.match(text) if style == "marker" else None
        if not found or text[opens.end() if opens else 0 : found[0][0].start()].strip():
            continue
        stops = [match.start() for match, _ in found[1:]] + [len(text)]
        turns, said = list[dict[str, str]](), ""
        for (match, role), stop in zip(found, stops, strict=True):
            said = ends.sub("", text[match.end() : stop]) if ends else text[match.end() : stop]
            turns.append({"role": role, "content": said.strip(), "speaker": _name(match)})
        turns = turns[: -1 if len(turns) > 1 and not said.strip() else None]  # a prompt ends with who replies
        if len({turn["role"] for turn in turns}) > 1:
            return turns if style != "loose" or all(a["role"] != b["role"] for a, b in pairwise(turns)) else first
        first = first or ([] if style == "loose" else turns)
    return first


def seen(text: str, role_map: Mapping[str, str]) -> dict[str, str | None]:
    """The names that seem to speak in ``text``, each with its role, or None where that is not known; none where fewer
    than two names open its lines, tags or markers, and none of ``role_map``."""
    text = _plain(text)
    for style in ("marker", "tag", "line", "bracket", "heading"):
        names = {name: _role(style, name, role_map) for _, name in _openers(style, text, role_map)}
        if style == "tag":
            names = {name: role for name, role in names.items() if name.lower() not in _HTML and f"</{name}>" in text}
        if style == "heading" and not text.lstrip().startswith("#") and "assistant" not in names.values():
            continue  # those of a page
        if len(names) > 1 or not role_map.keys().isdisjoint(names):
            return names
    return {}


def _plain(text: str) -> str:
    """``text`` in which calls of gpt-oss are those of Hermes, and what a tool answers is a tool's turn."""
    if "<|channel|>" not in text:
        return text
    text = _CALL.sub(r'<|start|>assistant<|message|><tool_call>{"name": "\1", "arguments": \2}</tool_call>', text)
    return _CALLED.sub("<|start|>tool<|message|>", text)


@cache
def _loose(names: tuple[str, ...]) -> re.Pattern[str]:
    """What opens the turns of known speakers in other ways: after bullets, in HTML, alone on a line, within a line."""
    known = "|".join(map(re.escape, sorted((*SPEAKERS, *names), key=len, reverse=True)))
    name = rf"((?i:{known}))(?:[ ]?#?\d{{1,6}})?"
    tags, bullet = rf"(?:[ \t]|{_HTML_TAG})*", r"(?:[-•*][ ]|\d{1,3}[.)][ ]|Turn \d{1,3}\W{1,3})?"
    before = rf"(?:^|\\n|\||{_HTML_TAG}|</s>){tags}{bullet}{_STAMP}[\"“'*_]{{0,3}}"
    colon = r"(?:[ ]?[:：]|>{1,3}|[ ][-–—][ ]|[ \t]*$)(?:</\w+>|[*_])*"
    after = rf"(?:[ ]?[(\[]{_WHEN}[)\]])?[\"”'*_]{{0,3}}(?:</\w+>)?{colon}"
    within = rf"(?:(?<=\s)|(?=###)|(?<=</s>))(?=[\[#A-Z])(?:\[{name}\]:?|(?:\#{{2,4}}[ ]?)?{name}:)"
    return re.compile(rf"{before}{name}{after}|{within}|^\[{name}\]:?", re.MULTILINE)


def _openers(style: str, text: str, role_map: Mapping[str, str]) -> Iterator[tuple[re.Match[str], str]]:
    pattern = _loose(tuple(name for name in role_map if name != "*")) if style == "loose" else _STYLES[style][0]
    for match in pattern.finditer(text):
        name = _name(match)
        if len(name.split()) <= _WORDS and name.lower() not in _NO_NAMES:
            yield match, name


def _name(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _role(style: str, name: str, role_map: Mapping[str, str]) -> str | None:
    known = role_of(name, role_map) or _INST.get(name) if style == "marker" else speaker_role(name, role_map)
    return known or (None if style == "loose" else role_map.get("*"))
