"""What differs on the wire between the SGLang versions that the engine can stand in for.

One flag per observed difference, so that endpoints ask "does this version do X" and never compare version
strings. Facts: the captured responses of 0.5.12, 0.5.13 and 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VersionName = Literal["0.5.12", "0.5.13", "0.5.23"]

_FIELDS_OF_0_5_13 = frozenset({"input_ids", "return_prompt_token_ids", "return_meta_info"})
"""New on chat; of these `/generate` gained `return_prompt_token_ids` and always had `input_ids`."""
_FIELDS_OF_0_5_23 = frozenset(
    {"return_token_ids", "return_input_ids_in_sglext", "return_output_ids_in_sglext"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireVersion:
    """The behaviour of one SGLang release; every flag defaults to what 0.5.13 does."""

    name: VersionName
    unknown_fields: frozenset[str] = _FIELDS_OF_0_5_23
    """Body fields that this version drops in silence, whatever they hold."""
    strips_text: bool = False
    """Whitespace around reasoning and content is lost, and an empty content is null."""
    drops_tool_markup: bool = False
    """Markup that holds no complete call leaves the content; otherwise it stays and `tool_calls` is `[]`."""
    null_tool_calls: bool = True
    """`tool_calls: null` is sent when there are none; otherwise the key is absent."""
    ordinal_tool_index: bool = False
    """`tool_calls[].index` counts the calls; otherwise it is the tool's position in the request."""
    tool_ends_reasoning: bool = False
    """A `<tool_call>` inside unclosed thinking ends it; otherwise it is swallowed as reasoning."""
    eos_before_length: bool = False
    """EOS on the last allowed token is "stop"; otherwise it is "length"."""
    typed_sampling_errors: bool = False
    """A bad key or type in `sampling_params` is a 400 with a string error; otherwise a plain-text 500."""
    tools_as_sent: bool = False
    """Tool schemas keep the client's key order and gain no `strict`; otherwise both are fixed."""
    weight_versions: bool = False
    """`weight_versions` spans are in meta_info and metadata, `completion_tokens_details` is in usage."""
    queued_abort_prompt_ids: bool = False
    """A request aborted in the queue still echoes `prompt_token_ids` on chat."""
    every_abort_status: bool = False
    """Every 4xx/5xx of an abort becomes the HTTP status; otherwise only 400, 500 and 503 do."""
    true_token_bytes: bool = False
    """`logprobs.content[].bytes` are the token's own, also of half a character; otherwise those of its text."""
    tokenize_generation_prompt: bool = False
    """`/tokenize` honours `add_generation_prompt`; otherwise it is accepted and ignored."""


VERSIONS: dict[VersionName, WireVersion] = {
    "0.5.12": WireVersion(
        name="0.5.12", unknown_fields=_FIELDS_OF_0_5_13 | _FIELDS_OF_0_5_23, strips_text=True
    ),
    "0.5.13": WireVersion(name="0.5.13"),
    "0.5.23": WireVersion(
        name="0.5.23",
        unknown_fields=frozenset(),
        drops_tool_markup=True,
        null_tool_calls=False,
        ordinal_tool_index=True,
        tool_ends_reasoning=True,
        eos_before_length=True,
        typed_sampling_errors=True,
        tools_as_sent=True,
        weight_versions=True,
        queued_abort_prompt_ids=True,
        every_abort_status=True,
        true_token_bytes=True,
        tokenize_generation_prompt=True,
    ),
}
