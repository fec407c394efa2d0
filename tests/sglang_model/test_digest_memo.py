from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_model.conversation_digest import digest_conversation
from sglang_model.digest_memo import DigestMemo
from tests.support.turns import assistant, call, tool, user

MESSAGE = st.one_of(
    st.builds(user, st.sampled_from(["a", "b", ""])),
    st.builds(assistant, st.sampled_from(["a", "b"])),
    st.just({"role": "assistant", "content": None, "tool_calls": [call("c", "look", {"a": 1})]}),
    st.just(tool("c", "r")),
    st.sampled_from(
        [1, 11, None, "text", {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"n": 10**30}]
    ),
)


@given(
    st.lists(st.tuples(st.sampled_from(["s", "t"]), st.lists(MESSAGE, max_size=6), st.booleans()), max_size=8)
)
def test_digests_are_those_made_anew_whatever_a_session_sent_before(
    requests: list[tuple[str, list[object], bool]],
) -> None:
    memo = DigestMemo(max_messages=10)
    last: dict[str, list[object]] = {}
    for session, messages, goes_on in requests:
        sent = [*last.get(session, []), *messages] if goes_on else messages
        last[session] = sent
        assert memo.digests(session, sent) == digest_conversation(sent)


def test_a_changed_message_in_front_is_noticed() -> None:
    memo = DigestMemo()
    memo.digests("s", [user("a"), assistant("b")])
    changed = [user("A"), assistant("b"), user("c")]
    assert memo.digests("s", changed) == digest_conversation(changed)


def test_no_more_messages_are_remembered_than_allowed() -> None:
    memo = DigestMemo(max_messages=5)
    for number in range(20):
        memo.digests(f"s{number}", [user("a"), user("b")])
    assert sum(known.digests.messages for known in memo._known.values()) <= 5
    assert "s19" in memo._known
