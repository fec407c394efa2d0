"""`SGLangModel`: a `VLLMModel` whose turns carry exactly the ids that SGLang saw and sampled.

`transport: chat` is the inherited flow with two steps replaced: what is asked for, and how the token triple is read.
`transport: generate` is not built yet and refused at start-up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import ClassVar, cast

from fastapi import Request

from nemo_gym.errors import ConfigError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint
from sglang_model import chat_request
from sglang_model.config import SGLangModelConfig
from sglang_model.length_refusals import SGLANG_PATTERNS
from sglang_model.wire import read_chat_turn, refuse_unusable_finish
from vllm_model.app import VLLMModel
from vllm_model.chat_body import Body
from vllm_model.engine_answer import message_of

__all__ = ["SGLangModel", "SGLangModelConfig"]


class SGLangModel(VLLMModel):
    length_patterns: ClassVar[Sequence[re.Pattern[str]]] = SGLANG_PATTERNS

    config: SGLangModelConfig

    def _post_init(self) -> None:
        super()._post_init()
        if self.config.transport == "generate":
            raise ConfigError(
                f"{self.config.name}: transport: generate is not built yet; use transport: chat with SGLang >= 0.5.13",
                param="transport",
            )
        if self.config.ignored_settings:
            logging.getLogger(self.config.name).warning(
                "transport: chat does not use %s: the engine renders and parses",
                ", ".join(self.config.ignored_settings),
            )

    def _preprocess_chat_completion_create_params(self, request: Request, body_dict: Body) -> Body:
        body = super()._preprocess_chat_completion_create_params(request, body_dict)
        body = chat_request.without_carried_token_ids(body)
        if self.config.return_token_id_information:
            body = chat_request.with_sglang_token_id_request(body)
        return body

    async def _attach_token_id_information(
        self,
        choice_dict: Body,
        body_dict: Body,
        client: NeMoGymAsyncOpenAI,  # noqa: ARG002 - everything is in the choice; no /tokenize round trip
    ) -> None:
        """Put the token triple of SGLang's own fields into the message, and take those fields out of the choice."""
        sent_ids = cast("list[int] | None", body_dict.get("input_ids"))
        turn = read_chat_turn(choice_dict, self.config.name, sent_ids=sent_ids)
        message = message_of(choice_dict)
        message.update(
            prompt_token_ids=turn.prompt_token_ids,
            generation_token_ids=turn.generation_token_ids,
            generation_log_probs=turn.generation_log_probs,
        )
        if turn.routed_experts is not None:
            message["routed_experts"] = turn.routed_experts
        for field in chat_request.ANSWER_FIELDS:
            choice_dict.pop(field, None)

    def _refuse_unusable(self, choice_dict: Body) -> None:
        refuse_unusable_finish(choice_dict, self.config.name)

    def _tidy_choice(self, choice_dict: Body) -> None:
        chat_request.tidy_tool_calls(choice_dict)


if __name__ == "__main__":
    SGLangModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = SGLangModel.run_webserver()
