"""When two conversations are the same one: digests of every prefix of a conversation, in one pass.

A follow-up turn is recognised by what its conversation *means*, because clients write the same history in
many ways: text as a string or as one part, arguments with other key order, spaces or escapes, null for
absent, reasoning kept or dropped. What a template would render differently, or a reader would read
differently, is another conversation. This room knows chat messages; it knows no tokens, no template and no
session.

What counts, beyond the obvious, and why:

* the order of messages and of tool calls, `tool_call_id` and the ids of calls. Some families render ids
  (Kimi, Mistral), and without them two results of parallel calls could change places unseen;
* every other key of a message that was not sampled, unless it is null or empty: a template may read it;
* the bounds between several text parts of such a message: engines join them with a space, a newline or
  nothing.

What does not count: token ids and logprobs that are sent back, `cache_control` (clients move it from turn to
turn), and of an assistant message everything but its visible text, refusal, tool calls and name. Its
reasoning is left out (fields, parts, `<think>..</think>` in the text, text in front of a lone `</think>` that
the prompt opened, an unclosed `<think>` at the start), and with it blank space around the whole text, which
every client that cuts reasoning out of the text trims as well. Empty arguments are `{}`; arguments that are
no JSON compare as text.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, cast

from nemo_gym.grown_list import made_before, note
from sglang_model.canonical_form import canonical_form

DIGEST_SIZE: Final = 16
_DIGESTS: Final = "conversation digests"

_TOKEN_FIELDS: Final = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}
_IGNORED_KEYS: Final = _TOKEN_FIELDS | {"cache_control"}
_TEXT_PARTS: Final = {"text", "input_text", "output_text"}
_REASONING_PARTS: Final = {"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"}
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


_PLACES_IN_THINKING: Final = 64
"""Parts that are no text, among text with thinking in it, up to which their place in the visible text is found; more
are placed in the whole text, because each costs a search from the beginning."""


def _finite(text: str) -> float:
    """Read a JSON number; 1e400 and 2e400 are different and would both become infinity, so they stay text."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is beyond the range of a float")
    return number


# One decoder for all: json.loads makes a new one for every call that names a hook.
_DECODER: Final = json.JSONDecoder(parse_float=_finite)


@dataclass(frozen=True, slots=True)
class ConversationDigests:
    """A conversation of n messages: n + 1 prefixes, n traces.

    `semantic[k]` stands for the first k messages; equal entries mean the same conversation. `traces[i]`
    stands for what message i has beyond its meaning, reasoning and outer blanks of an assistant turn, and
    is empty if there is nothing: a client that sends reasoning back says by it which of several turns of
    equal words it means. `assistant_ends` are the k whose last message is the assistant's.
    """

    semantic: tuple[bytes, ...]
    traces: tuple[bytes, ...]
    assistant_ends: tuple[int, ...]

    @property
    def messages(self) -> int:
        return len(self.traces)

    def followed_by(self, *messages: object) -> ConversationDigests:
        """Return the digests with `messages` behind the others, for example the reply just sampled."""
        semantic, traces, ends = list(self.semantic), list(self.traces), list(self.assistant_ends)
        for count, message in enumerate(messages, start=self.messages + 1):
            own, trace = _message_digests(message)
            semantic.append(_digest(semantic[-1] + own))
            traces.append(trace)
            if _is_assistant(message):
                ends.append(count)
        return ConversationDigests(tuple(semantic), tuple(traces), tuple(ends))


def digest_conversation(messages: Sequence[object]) -> ConversationDigests:
    """Return the digests of all prefixes of `messages`; any input has some, and none raises."""
    return ConversationDigests((bytes(DIGEST_SIZE),), (), ()).followed_by(*messages)


def digest_grown(messages: Sequence[object]) -> ConversationDigests:
    """The same, made only for the messages behind those that an earlier request had (`nemo_gym/grown_list.py`)."""
    known = made_before(messages, _DIGESTS)
    digests = known if isinstance(known, ConversationDigests) else digest_conversation(())
    digests = digests.followed_by(*messages[digests.messages :])
    note(messages, _DIGESTS, digests)
    return digests


def digest_rendering(
    tools: Sequence[object] | None,
    chat_template_kwargs: Mapping[str, object] | None,
    other_inputs: Mapping[str, object] | None = None,
) -> bytes:
    """Return the digest of what a template renders besides the messages.

    No tools are the same as an empty list of them, and so for keyword arguments; the order of tools counts,
    because it is rendered. `other_inputs` is for whatever else decides the rendering, such as a template
    chosen per request; entries that are None are as good as absent.
    """
    others = {name: value for name, value in (other_inputs or {}).items() if value is not None}
    return _digest(canonical_form([tools or [], chat_template_kwargs or {}, others]))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE).digest()


def _is_assistant(message: object) -> bool:
    return isinstance(message, (dict, Mapping)) and message.get("role") == "assistant"


def _message_digests(message: object) -> tuple[bytes, bytes]:
    """The digest of what a message means, and its trace."""
    trace = b""
    if not isinstance(message, (dict, Mapping)):
        form = canonical_form(["no message", message])
    elif message.get("role") == "assistant":
        meaning, unseen = _assistant_meaning(message)
        form = _form("assistant", meaning)
        trace = _digest(canonical_form(unseen)) if any(unseen) else b""
    else:
        form = _form("given", _given_meaning(message))
    return _digest(form), trace


def _form(kind: str, meaning: dict[str, object]) -> bytes:
    """The bytes that stand for a meaning. Most are a few texts, and need none of JSON's escapes to be told apart."""
    try:
        texts = [kind, *chain.from_iterable(sorted(meaning.items()))]
        joined = "".join(cast("list[str]", texts))
    except TypeError:  # not only texts
        return canonical_form([kind, meaning])
    lengths = ",".join(map(str, map(len, cast("list[str]", texts))))
    return f"{lengths}:{joined}".encode("utf-8", "surrogatepass")


def _given_meaning(message: Mapping[str, object]) -> dict[str, object]:
    """The meaning of a message that came from outside: all of it that a template could render."""
    meaning: dict[str, object] = {}
    for key, value in message.items():
        if key in _IGNORED_KEYS or _is_empty(value):
            continue
        meaning[key] = _given_content(value) if key == "content" else value
    return meaning


def _given_content(content: object) -> object:
    if not isinstance(content, (list, tuple)):
        return content
    parts = [text if (text := _part_text(part)) is not None else _other_part(part) for part in content]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _assistant_meaning(message: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """The visible turn, and what only the trace holds: reasoning and the blank space around the text."""
    content = message.get("content")
    texts = [content] if isinstance(content, str) else []
    parts = (
        content if isinstance(content, (list, tuple)) else [] if texts or _is_empty(content) else [content]
    )
    others: list[object] = []
    places: list[int] = []
    thoughts = [value for name in _REASONING_FIELDS if isinstance(value := message.get(name), str)][:1]
    length = len(texts[0]) if texts else 0
    for part in parts:
        text = _part_text(part)
        if text is not None:
            texts.append(text)
            length += len(text)
        elif (thought := _reasoning_text(part)) is not None:
            thoughts.append(thought)
        else:
            others.append(_other_part(part))
            places.append(length)
    whole = "".join(texts)
    visible, thought = _without_thinking(whole)
    text = visible.strip()
    meaning: dict[str, object] = {"text": text}
    if others:
        # Where each stands in the visible text counts too.
        meaning["others"] = [list(item) for item in zip(_visible_lengths(whole, places), others, strict=True)]
    calls = message.get("tool_calls")
    if not _is_empty(calls):
        meaning["tool_calls"] = _tool_calls(calls)
    for key in ("refusal", "name", "function_call", "audio"):
        if not _is_empty(value := message.get(key)):
            meaning[key] = value
    reasoning = "".join([*thoughts, thought]).strip()
    return meaning, [reasoning, visible if visible != text else ""]


def _visible_lengths(text: str, places: Sequence[int]) -> list[int]:
    """How long the visible text in front of each place is, outer blanks left out. The places ascend."""
    if (_OPEN in text or _CLOSE in text) and len(places) <= _PLACES_IN_THINKING:
        return [len(_without_thinking(text[:place])[0].strip()) for place in places]
    leading = len(text) - len(text.lstrip())
    lengths: list[int] = []
    end = before = 0
    for place in places:
        shown = text[before:place].rstrip()
        end = before + len(shown) if shown else end
        before = place
        lengths.append(max(0, end - leading))
    return lengths


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and not value)


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or _kind(part) not in _TEXT_PARTS:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def _kind(part: Mapping[str, object]) -> str:
    kind = part.get("type", "text")
    return kind if isinstance(kind, str) else ""


def _reasoning_text(part: object) -> str | None:
    if not isinstance(part, Mapping) or _kind(part) not in _REASONING_PARTS:
        return None
    text = part.get("thinking", part.get("text"))
    return text if isinstance(text, str) else ""


def _other_part(part: object) -> object:
    """An image, a file, a refusal: by its content, a bare URL like the mapping that holds it."""
    if not isinstance(part, Mapping):
        return part
    meaning = {key: value for key, value in part.items() if key not in _IGNORED_KEYS and not _is_empty(value)}
    kind = _kind(part)
    value = meaning.get(kind)
    if isinstance(value, str) and kind.endswith("_url"):
        meaning[kind] = {"url": value}
    elif isinstance(value, Mapping):
        meaning[kind] = {key: inner for key, inner in value.items() if not _is_empty(inner)}
    return meaning


def _tool_calls(calls: object) -> object:
    return [_tool_call(call) for call in calls] if isinstance(calls, (list, tuple)) else calls


def _tool_call(call: object) -> object:
    """Id, name and arguments, nested as OpenAI has them or flat; keys such as a stream's `index` do not
    count.
    """
    if not isinstance(call, Mapping):
        return call
    function = call.get("function", call)
    if not isinstance(function, Mapping) or call.get("type") not in (None, "", "function"):
        return {key: value for key, value in call.items() if not _is_empty(value)}
    return [call.get("id") or "", function.get("name"), *_arguments(function.get("arguments"))]


def _arguments(arguments: object) -> tuple[str, object]:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return "json", {}
    if not isinstance(arguments, str):
        return "json", arguments
    try:
        return "json", _DECODER.decode(arguments)
    except (ValueError, RecursionError):
        return "text", arguments


def _without_thinking(text: str) -> tuple[str, str]:
    """Split an assistant's text into what is visible and what is thinking.

    Searched from left to right with `find`, because a lazy pattern takes quadratic time on unclosed tags.
    """
    if _CLOSE not in text and _OPEN not in text:
        return text, ""
    visible: list[str] = []
    thoughts: list[str] = []
    position = 0
    first_close = text.find(_CLOSE)
    if first_close >= 0 and text.find(_OPEN, 0, first_close) < 0:
        thoughts.append(text[:first_close])
        position = first_close + len(_CLOSE)
    while (start := text.find(_OPEN, position)) >= 0:
        end = text.find(_CLOSE, start + len(_OPEN))
        if end < 0:
            if not "".join([*visible, text[position:start]]).strip():
                thoughts.append(text[start + len(_OPEN) :])
                position = len(text)
            break
        visible.append(text[position:start])
        thoughts.append(text[start + len(_OPEN) : end])
        position = end + len(_CLOSE)
    visible.append(text[position:])
    return "".join(visible), "".join(thoughts)
