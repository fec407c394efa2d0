"""A stand-in for SGLang, for machines without a GPU. It is not a model: it says what a script tells it to.

It answers on the wire as SGLang 0.5.12, 0.5.13 or 0.5.23 does, tokenises for real, and can be told to
misbehave. The demo and the tests of this project run on it, and so can yours:

    engine = create_engine_app(
        EngineSettings(
            version="0.5.13",
            context_length=4096,
            rules=(
                Rule(when="weather", reply='<tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>'),
                Rule(when="hello", reply="Hello there!", misbehave=Misbehaviour(status=503, times=1)),
            ),
        )
    )
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=engine), base_url="http://engine")

`create_engine_app(settings)` gives an `Engine`, an ASGI application; `sglang-model engine` serves it on a
port.

    engine.requests         what arrived: method, path, headers without the key, body
    engine.samples          what was really seen and sampled, whatever the answer said of it
    engine.rules            the script: the first rule that matches the decoded prompt wins, else a sampler
    engine.misbehaviours    engine-wide misbehaviours, for whole endpoints
    engine.gate(name)       `.open()` lets held requests go, `await .until_waiting(n)` knows that they came
    engine.until_sampled(n) waits until n generations have ended
    engine.tokenizer        encode, encode_bytewise, decode, eos_token_id

`EngineSettings` says which server it is (version, context length, key, parsers, tokenizer folder); `Rule`
what the model samples (`reply` text, or `ids` that no encoder would choose); `Misbehaviour` and `Abort` what
goes wrong. Their fields are documented where they are defined. Logprobs and sampled ids are functions of the
prompt ids, the seed and the parameters, so the same request gives the same answer and a damaged prompt gives
other logprobs.

What it does not do: streaming (400, and the message says so), sessions, LoRA, grammars (accepted, not
enforced), penalties and logit_bias (checked and part of the sampler's seed, not applied), /v1/completions,
multimodal input.
"""

from __future__ import annotations

from sglang_model.testing.engine import Engine, create_engine_app
from sglang_model.testing.misbehaviour import Abort, Misbehaviour
from sglang_model.testing.policy import Rule
from sglang_model.testing.settings import EngineSettings

__all__ = ["Abort", "Engine", "EngineSettings", "Misbehaviour", "Rule", "create_engine_app"]
