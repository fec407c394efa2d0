"""The fast path against its slow, obvious twin: decode everything, then make ids of the lists under the three names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_gym import json_ids
from nemo_gym.token_ids import LogProbs, TokenIds

NAMES = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def slow_loads(raw: bytes) -> object:
    """The twin. Lists of anything else than numbers stay lists; so does a list where no ids are expected."""
    value: object = orjson.loads(raw)
    for holder in holders(value):
        for name in NAMES:
            numbers = holder.get(name)
            if isinstance(numbers, list) and all(type(n) in (int, float) for n in numbers):
                if name == "generation_log_probs":
                    holder[name] = LogProbs([float(n) for n in numbers])
                elif all(type(n) is int and n >= 0 for n in numbers):
                    holder[name] = TokenIds(numbers)
    return value


def holders(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        elements = [
            e for field in value.values() if isinstance(field, list) for e in field if isinstance(e, dict)
        ]
        yield from (value, *elements, *(e["message"] for e in elements if isinstance(e.get("message"), dict)))


def plain(value: object) -> object:
    """The same value with lists for ids, so that an id array that was taken and one that was not compare equal."""
    if isinstance(value, (TokenIds, LogProbs)):
        return [float(number) if isinstance(value, LogProbs) else number for number in value]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


# Texts that look like the keys, quotes, brackets and escapes the cutter goes by.
TRICKY = st.sampled_from(
    [
        *NAMES,
        '"prompt_token_ids":[1,2]',
        '\\"prompt_token_ids\\":[1',
        "]",
        "[",
        '"',
        "\\",
        ',"',
        '{"generation_log_probs": [-0.5]}',
    ]
)
TEXT = st.one_of(st.text(max_size=6), TRICKY, st.builds(str.__add__, TRICKY, TRICKY))
IDS = st.lists(st.integers(0, 200_000), max_size=6)
LOG_PROBS = st.lists(st.one_of(st.floats(-30, 0, allow_nan=False), st.integers(-3, 0)), max_size=6)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
JSON = st.recursive(
    st.one_of(SCALAR, IDS, LOG_PROBS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(TEXT, st.sampled_from([*NAMES, "input", "message", "choices"])), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@st.composite
def items(draw: st.DrawFn) -> dict[str, object]:
    item = draw(st.dictionaries(TEXT, JSON, max_size=3))
    for name in NAMES:
        if draw(st.booleans()):
            item[name] = draw(st.one_of(LOG_PROBS if name == "generation_log_probs" else IDS, JSON))
    return item


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A request-like document, written compactly, with blanks, or with escapes, as clients do."""
    value = draw(
        st.one_of(
            JSON,
            st.fixed_dictionaries(
                {"input": st.lists(items(), max_size=4)}, optional={"metadata": JSON, "tools": JSON}
            ),
            st.fixed_dictionaries(
                {"choices": st.lists(st.fixed_dictionaries({"message": items()}), max_size=2)}
            ),
        )
    )
    written = draw(st.sampled_from(["compact", "blanks", "lines", "ascii"]))
    if written == "compact":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if written == "lines":
        return json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=written == "ascii").encode("utf-8", "replace")


def outcome(decode: object, raw: bytes) -> object:
    try:
        return plain(decode(raw))  # type: ignore[operator]
    except orjson.JSONDecodeError as error:
        return (error.msg, error.pos, error.lineno, error.colno)


@given(documents())
@example(b'{"input":[{"x\\"prompt_token_ids":[1]}]}')
@example(b'{"input":[{"prompt\\u005ftoken_ids":[1]}]}')
@example(b'{"input":[{"prompt_token_ids":[1],"prompt_token_ids":[2]}]}')
@example(b'{"a":{"b":{"prompt_token_ids":[1]}}}')
@example(b'["prompt_token_ids",[1]]')
@example(b'{"prompt_token_ids" \n:\t[ 1 , 2 ]}')
@example(
    b'{"input":[{"generation_token_ids":[1.5]},{"generation_token_ids":[[1]]},{"generation_token_ids":["]"]}]}'
)
def test_every_document_decodes_as_it_does_the_slow_way(raw: bytes) -> None:
    assert outcome(json_ids.loads, raw) == outcome(slow_loads, raw)


@given(documents())
@example(b'{"choices":[{"prompt_token_ids":["]",[1],"a]"]}]}')
@example(b'{"choices":[{"prompt_token_ids":[{"a":[1]},2]}]}')
@example(b'{"choices":[{"prompt_token_ids":[[1],2]}]}')
@example(b'{"choices":[{"message":{"prompt_token_ids":[0.0]}}]}')
@example(b'{"choices":[{"message":{"prompt_token_ids":[10000000000]}}]}')
def test_an_answer_decodes_the_same_or_its_reader_is_told(raw: bytes) -> None:
    slow = plain(orjson.loads(raw))
    fast = json_ids.loads(raw, will_be_read=True)
    try:
        assert plain(fast) == slow
    except ValueError:
        assert any(
            not is_checked(LogProbs if name == "generation_log_probs" else TokenIds, numbers)
            for holder in holders(slow)
            for name in NAMES
            if isinstance(numbers := holder.get(name), list)
        )


def is_checked(kind: type[TokenIds | LogProbs], numbers: list[object]) -> bool:
    try:
        kind.checked(numbers)
    except ValueError:
        return False
    return True


@given(documents(), st.data())
def test_a_broken_document_is_refused_as_it_is_the_slow_way(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, max(0, len(raw) - 1)))
    broken = data.draw(
        st.sampled_from(
            [raw[:at], raw[:at] + raw[at + 1 :], raw[:at] + b'"' + raw[at:], raw[:at] + b"]" + raw[at:]]
        )
    )
    slow, fast = outcome(slow_loads, broken), None
    try:
        fast = outcome(json_ids.loads, broken)
    except ValueError:
        # The one thing that is not asked before somebody reads the ids: whether digits and commas are a list.
        assert isinstance(slow, tuple)
        return
    assert fast == slow


@given(documents())
def test_what_was_decoded_is_written_as_it_came(raw: bytes) -> None:
    try:
        value = json_ids.loads(raw)
    except orjson.JSONDecodeError:
        return
    written = json_ids.dumps(value)
    assert plain(orjson.loads(written)) == plain(slow_loads(raw))
    assert json_ids.dumps(json_ids.loads(written)) == written


PLACES = st.sampled_from(
    [TokenIds([1, 22]), TokenIds(), LogProbs([-0.5]), json_ids._PLACE, f'"{json_ids._PLACE}"', "é", None]
)


@given(st.recursive(PLACES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=9))
@example([TokenIds([1]), json_ids._PLACE, {json_ids._PLACE: LogProbs()}])
def test_arrays_are_written_where_they_are_whatever_stands_beside_them(value: object) -> None:
    def as_list(part: object) -> object:
        assert isinstance(part, (TokenIds, LogProbs))
        return part.tolist()

    assert json_ids.dumps(value) == orjson.dumps(value, default=as_list)


def test_what_is_no_json_value_is_named_when_it_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="not JSON serializable: object"):
        json_ids.dumps([TokenIds([1]), object()])


@pytest.mark.parametrize("inside", [b"1,,2", b",", b"01", b"1,", b"1 2", b"1e3", b"+1"])
def test_ids_that_are_no_list_are_never_written(inside: bytes) -> None:
    carried = json_ids.loads(b'{"input":[{"prompt_token_ids":[%b]}]}' % inside, will_be_read=True)
    with pytest.raises(orjson.JSONEncodeError) as refused:
        json_ids.dumps(carried)
    assert isinstance(refused.value.__cause__, ValueError)


@pytest.mark.parametrize("odd", ["1.5", "-1", "true", "null", '"7"', "[7]", "{}", "1e3", "+1", "x"])
@pytest.mark.parametrize("at", [0, 5_000, 9_999])
def test_an_odd_element_of_a_long_array_is_seen_as_it_is_the_slow_way(odd: str, at: int) -> None:
    numbers = [str(number) for number in range(10_000)]
    long = ",".join([*numbers[:at], odd, *numbers[at + 1 :]])
    raw = f'{{"input":[{{"prompt_token_ids":[{long}]}}]}}'.encode()
    assert outcome(json_ids.loads, raw) == outcome(slow_loads, raw)


@pytest.mark.parametrize("odd", ["1.5", "-1", "true", '"7"', "[7]", "{}", "x", "]", '5],"a":[6'])
def test_an_odd_element_behind_an_earlier_turns_prompt_is_seen_as_it_is_the_slow_way(odd: str) -> None:
    turns = ",".join(
        f'{{"prompt_token_ids":[{prompt}]}}' for prompt in ("1,2", "1,2,3", f"1,2,3,{odd}", "1,2,3")
    )
    raw = f'{{"input":[{turns}]}}'.encode()
    assert outcome(json_ids.loads, raw) == outcome(slow_loads, raw)


def test_an_array_that_is_the_same_again_is_carried_too() -> None:
    loaded = json_ids.loads(
        b'{"input":[{"prompt_token_ids":[1,2]},{"prompt_token_ids":[1,2]},{"prompt_token_ids":[1]}]}'
    )
    assert isinstance(loaded, dict)
    assert [type(item["prompt_token_ids"]) for item in loaded["input"]] == [TokenIds] * 3


def test_log_probabilities_in_front_excuse_no_ids() -> None:
    raw = b'{"input":[{"generation_token_ids":[1],"generation_log_probs":[-0.5]},{"prompt_token_ids":[-0.5,1]}]}'
    loaded = json_ids.loads(raw)
    assert isinstance(loaded, dict)
    assert loaded["input"][1] == {"prompt_token_ids": [-0.5, 1]}
    assert type(loaded["input"][1]["prompt_token_ids"]) is list


@given(st.data())
def test_turns_that_grow_and_hold_something_odd_decode_as_they_do_the_slow_way(data: st.DataObject) -> None:
    """What an array shares with the one before it is passed over, so the odd is put everywhere around that."""
    added = data.draw(st.lists(IDS, min_size=2, max_size=5))
    blank = data.draw(st.sampled_from(["", " "]))
    prompts = [list(chain.from_iterable(added[: turn + 1])) for turn in range(len(added))]
    name = data.draw(st.sampled_from(NAMES[:2]))
    raw = json.dumps(
        {"input": [{name: prompt} for prompt in prompts]}, separators=("," + blank, ":")
    ).encode()
    at = data.draw(st.integers(0, len(raw)))
    odd = data.draw(
        st.sampled_from(
            [b"]", b'"', b",", b"7", b"-1", b"1.5", b"[", b"[]", b'],"x":[', b'"%b":[' % name.encode()]
        )
    )
    broken = raw[:at] + odd + raw[at:]
    for document in (raw, broken):
        slow = outcome(slow_loads, document)
        try:
            fast = outcome(json_ids.loads, document)
        except ValueError:
            assert isinstance(slow, tuple)
            continue
        assert fast == slow


@pytest.mark.parametrize("separator", [",", ", ", " ,\n"])
def test_a_long_array_is_carried_and_written_compactly(separator: str) -> None:
    raw = f'{{"input":[{{"prompt_token_ids":[{separator.join(map(str, range(10_000)))}]}}]}}'.encode()
    loaded = json_ids.loads(raw)
    assert isinstance(loaded, dict)
    ids = loaded["input"][0]["prompt_token_ids"]
    assert isinstance(ids, TokenIds)
    assert len(ids) == 10_000
    assert json_ids.dumps(loaded) == orjson.dumps(orjson.loads(raw))


@pytest.mark.parametrize(
    "place", ['{"metadata":{"m":{"prompt_token_ids":[1,2]}}}', '{"a":[[{"prompt_token_ids":[1]}]]}']
)
def test_ids_where_none_are_expected_are_plain_lists(place: str) -> None:
    assert json_ids.loads(place.encode()) == json.loads(place)


def test_the_ids_of_an_item_are_not_decoded() -> None:
    loaded = json_ids.loads(b'{"input":[{"prompt_token_ids": [1, 22, 3],"generation_log_probs":[-0.5,-1]}]}')
    assert isinstance(loaded, dict)
    (item,) = loaded["input"]
    assert item["prompt_token_ids"] == TokenIds([1, 22, 3])
    assert len(item["prompt_token_ids"]) == 3
    assert item["prompt_token_ids"].text == b"1,22,3"
    assert item["generation_log_probs"] == LogProbs([-0.5, -1.0])


def test_openings_without_an_end_are_each_looked_at_once() -> None:
    """A search to the far end for each of them took five seconds for 2 MB."""
    searched = 0

    class Counting(bytes):
        def find(self, *arguments: object) -> int:  # type: ignore[override]
            nonlocal searched
            found = super().find(*arguments)  # type: ignore[arg-type]
            start, end = int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else len(self)  # type: ignore[call-overload]
            searched += (found if found >= 0 else end) - start
            return found

    raw = Counting(b'{"messages":' + b'[{"prompt_token_ids":[' * 2_000 + b"]")
    json_ids._cut(raw, json_ids._only_numbers)
    assert searched < 4 * len(raw)


@pytest.mark.parametrize("place", ["tools", "metadata", "user"])
def test_ids_in_other_lists_of_a_request_stay_lists(place: str) -> None:
    raw = orjson.dumps(
        {
            "messages": [{"role": "user", "message": {"prompt_token_ids": [1]}}],
            place: [{"prompt_token_ids": [1]}],
        }
    )
    assert json_ids.loads(raw) == orjson.loads(raw)
