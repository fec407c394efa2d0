from __future__ import annotations

import pytest
from pydantic import ValidationError

from sglang_model.testing import Rule
from sglang_model.testing.policy import Context
from sglang_model.testing.tokenizer import builtin_tokenizer
from tests.support.engine_client import engine_client

TOKENIZER = builtin_tokenizer()


async def test_the_first_rule_that_matches_the_decoded_prompt_speaks() -> None:
    rules = (Rule(when="user\nhello", reply="first"), Rule(when="hello", reply="second"))
    async with engine_client(rules=rules, reasoning_parser=None) as client:
        assert (await client.message("hello"))["content"] == "first"
        assert (await client.message("well, hello"))["content"] == "second"


async def test_a_rule_sees_the_special_tokens_and_across_lines() -> None:
    rules = (Rule(when="<tool_response>.*sunny.*<\\|im_start\\|>assistant", reply="seen"),)
    told = [{"role": "user", "content": "a"}, {"role": "tool", "content": "sunny"}]
    async with engine_client(rules=rules, reasoning_parser=None) as client:
        assert (await client.message(told))["content"] == "seen"


async def test_a_rule_with_times_steps_aside_after_them() -> None:
    rules = (Rule(reply="one", times=1), Rule(reply="two", times=1), Rule(reply="rest"))
    async with engine_client(rules=rules, reasoning_parser=None) as client:
        said = [(await client.message())["content"] for _ in range(4)]
    assert said == ["one", "two", "rest", "rest"]


async def test_rules_can_be_changed_while_the_engine_runs() -> None:
    async with engine_client(rules=(Rule(reply="old"),), reasoning_parser=None) as client:
        client.engine.rules[:] = [Rule(reply="new")]
        assert (await client.message())["content"] == "new"


async def test_ids_that_no_encoder_would_choose_are_sampled_as_they_are() -> None:
    odd = tuple(TOKENIZER.encode_bytewise("Hello"))
    async with engine_client(rules=(Rule(ids=odd),)) as client:
        sample = (await client.generate()).json()
    assert sample["output_ids"] == [*odd, TOKENIZER.eos_token_id]
    assert sample["text"] == "Hello"
    assert TOKENIZER.encode("Hello") != list(odd)


async def test_a_reply_without_eos_goes_on_until_the_budget_ends() -> None:
    async with engine_client(rules=(Rule(reply="Hello", eos=False),)) as client:
        sample = (await client.generate(sampling_params={"max_new_tokens": 5})).json()
    assert sample["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert sample["text"] == "Hello    "


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"reply": "a", "ids": (1,)}, "not both"),
        ({"when": "("}, "not a regex"),
        ({"wen": "x"}, "wen"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Rule(**fields)


async def test_the_sampler_gives_the_same_for_the_same_prompt_seed_and_parameters() -> None:
    params = {"max_new_tokens": 30, "sampling_seed": 7, "temperature": 0.9}
    async with engine_client() as one, engine_client() as other:
        first = (await one.generate("tell me", sampling_params=params)).json()
        again = (await other.generate("tell me", sampling_params=params)).json()
    assert first["output_ids"] == again["output_ids"]
    assert first["meta_info"]["output_token_logprobs"] == again["meta_info"]["output_token_logprobs"]


@pytest.mark.parametrize(
    "changed", [{"sampling_seed": 8}, {"temperature": 0.8}, {"top_p": 0.5}, {"top_k": 5}]
)
async def test_the_sampler_listens_to_the_seed_and_the_parameters(changed: dict[str, object]) -> None:
    params = {"max_new_tokens": 30, "min_new_tokens": 20, "sampling_seed": 7, "temperature": 0.9}
    async with engine_client() as client:
        first = (await client.generate("tell me", sampling_params=params)).json()
        other = (await client.generate("tell me", sampling_params=params | changed)).json()
    assert first["output_ids"] != other["output_ids"]


async def test_greedy_sampling_ignores_the_seed() -> None:
    async with engine_client() as client:
        params = {"max_new_tokens": 20, "temperature": 0}
        one = (await client.generate("x", sampling_params={**params, "sampling_seed": 1})).json()
        two = (await client.generate("x", sampling_params={**params, "sampling_seed": 2})).json()
    assert one["output_ids"] == two["output_ids"]


async def test_the_choices_of_one_request_differ() -> None:
    async with engine_client() as client:
        choices = (await client.chat("tell me", n=3)).json()["choices"]
    assert len({str(choice["meta_info"]["output_token_logprobs"]) for choice in choices}) == 3


async def test_the_sampler_ends_by_itself_and_its_logprobs_are_finite_and_not_positive() -> None:
    async with engine_client() as client:
        for number in range(20):
            await client.generate(f"prompt {number}", sampling_params={"max_new_tokens": None})
        samples = client.engine.samples
    assert all(sample.finish_reason["type"] == "stop" for sample in samples)
    assert all(-8 < logprob <= 0 for sample in samples for logprob in sample.logprobs)
    assert len({tuple(sample.token_ids) for sample in samples}) == 20


async def test_a_prompt_with_one_other_id_scores_the_same_reply_differently() -> None:
    async with engine_client(rules=(Rule(reply="the same reply to both of them"),)) as client:
        await client.generate(input_ids=[300, 301, 302])
        await client.generate(input_ids=[300, 301, 303])
        one, two = client.engine.samples
    assert one.token_ids == two.token_ids
    assert one.logprobs != two.logprobs


async def test_scoring_a_sequence_again_gives_the_logprobs_it_was_sampled_with() -> None:
    async with engine_client(rules=(Rule(when="^tell", reply="a reply"),)) as client:
        sampled = (await client.generate("tell me")).json()
        prompt = client.engine.samples[0].prompt_token_ids
        whole = [*prompt, *sampled["output_ids"]]
        params = {"max_new_tokens": 1}
        scored = (await client.generate(input_ids=whole, logprob_start_len=0, sampling_params=params)).json()
    inputs = scored["meta_info"]["input_token_logprobs"]
    assert inputs[0][0] is None
    assert inputs[len(prompt) :] == sampled["meta_info"]["output_token_logprobs"]


def test_a_context_depends_on_the_order_of_its_ids() -> None:
    assert Context([1, 2]).state != Context([2, 1]).state
    assert Context([0]).state != Context([]).state
