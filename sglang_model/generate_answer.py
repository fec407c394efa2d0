"""Decoding `/generate`'s answer: what was sampled by type, its second copy as the text it is. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from nemo_gym.token_ids import TokenIds
from sglang_model.sampled_entries import decode_meta_info, loads

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_generate_answer(raw: bytes) -> object:
    """As `orjson.loads`, but the entries in `meta_info` are `SampledEntries`, and a flat list under `output_ids` is a
    TokenIds that nobody has read yet. Raises ValueError for what is not JSON.

    What has no `meta_info` is decoded whole.
    """
    try:
        fields = _FIELDS.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return orjson.loads(raw)
    if "meta_info" not in fields:
        return orjson.loads(raw)
    if not raw.isascii():
        raw.decode()  # what msgspec skips it does not decode
    answer: dict[str, object] = {}
    for name, value in fields.items():
        if name == "meta_info":
            answer[name] = decode_meta_info(value)
        elif name == "output_ids" and (ids := TokenIds.of_array(bytes(value))) is not None:
            answer[name] = ids
        else:
            answer[name] = loads(value)
    return answer
