"""The renderer of each request, made from the configuration: the tokenizer loaded here, or the engine asked.

Loads and tests the chat template at start-up, because a wrong one is a wrong prompt and not an error.
"""

from __future__ import annotations

import logging

from nemo_gym.errors import ConfigError, UpstreamContractError, UpstreamStatusError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from sglang_model.config import SGLangModelConfig
from sglang_model.message_forms import MessageForms, normalise_messages
from sglang_model.renderer import LocalRenderer, load_renderer, read_chat_template
from sglang_model.rendering import Renderer
from sglang_model.server_renderer import ServerRenderer
from sglang_model.splice_types import Pins, RefusalReason, Rendered, RenderFailed, RenderRequest
from sglang_model.template_probe import probe_template
from sglang_model.template_profile import TemplateProfile, describe

TOKENIZER_PROBE = "Grüße, 世界! 3.14 <|im_end|>\n\n</s><|eot_id|>  \tfoo_bar"
"""A text on which two tokenizers are unlikely to agree unless they are the same; all added tokens stand behind it."""

TEMPLATE_PROBE = "Say something."
PROBE_TOOLS = (
    {"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": {}}},
)


class Renderers:
    """Keeps the local renderer, if there is one, and what has been learned about engines since the start."""

    def __init__(self, config: SGLangModelConfig, *, local: LocalRenderer | None = None) -> None:
        self._config = config
        self._log = logging.getLogger(config.name)
        self.pins = Pins(config.sglang_turn_suffix, config.sglang_eos_markers)
        self.local = local or self._load()
        self.profile = self._tested_profile()
        self._checked: set[NeMoGymAsyncOpenAI] = set()
        self._stops: dict[int, str] = {}
        self._scaffold: tuple[str, ...] | None = None

    @property
    def forms(self) -> MessageForms:
        """The forms of messages that the template needs."""
        return self.profile.forms if self.profile is not None else MessageForms()

    def markers(self, renderer: Renderer) -> tuple[str, ...]:
        """The texts that end a turn and are no part of the answer."""
        if self._config.sglang_eos_markers is not None:
            return self._config.sglang_eos_markers
        known = self.profile.markers if self.profile is not None else ()
        return (*known, *renderer.tokens.stops)

    async def of(self, client: NeMoGymAsyncOpenAI) -> Renderer:
        """The renderer for a call of this engine. Raises UpstreamContractError when it has another tokenizer."""
        if self.local is None:
            return await self._engine_renderer(client)
        if client not in self._checked:
            await self._compare_tokenizers(self.local, client)
            self._checked.add(client)
        return self.local

    async def _engine_renderer(self, client: NeMoGymAsyncOpenAI) -> ServerRenderer:
        """Knows the template's special tokens: without them few ends of turns can be proved."""
        model, stops = self._config.model, self._stops.items()
        if self._scaffold is None and self._config.splices_history:
            try:
                self._scaffold = await ServerRenderer(client, model).scaffold()
            except UpstreamStatusError as error:
                self._scaffold = ()
                self._log.warning(
                    "the engine's special tokens are not known, so more turns start a new segment: %s",
                    error.message,
                )
        return ServerRenderer(client, model, stop_tokens=stops, special_tokens=self._scaffold or ())

    async def learn_stop(self, renderer: Renderer, token_id: int) -> None:
        """Remember that the engine ends turns at this token; a tokenizer that is here knows already."""
        if self.local is None and token_id not in self._stops:
            self._stops[token_id] = await renderer.decode([token_id])

    def close(self) -> None:
        if self.local is not None:
            self.local.close()

    def _load(self) -> LocalRenderer | None:
        config = self._config
        if not config.renders_locally:
            return None
        template = read_chat_template(config.sglang_chat_template, config.sglang_chat_template_path)
        return load_renderer(
            config.sglang_tokenizer or config.model,
            chat_template=template,
            trust_remote_code=config.trust_remote_code,
            segment_cache_bytes=config.sglang_segment_cache_bytes,
        )

    def _tested_profile(self) -> TemplateProfile | None:
        """The self-test of the template. Raises ConfigError for one that shows no message, or contradicts the pins."""
        if self.local is None:
            return None
        profile = probe_template(
            self.local.render, self.local.tokens, self._config.chat_template_kwargs, pins=self.pins
        )
        self._log.info("chat template:\n%s", describe(profile))
        self._check_that_messages_show(self.local, profile)
        markers = self.pins.eos_markers
        if markers and profile.markers and not set(markers) & set(profile.markers):
            raise ConfigError(
                f"none of sglang_eos_markers {list(markers)} ends a turn: with this chat template and tokenizer those "
                f"are {list(profile.markers)}; leave it out to have them derived",
                param="sglang_eos_markers",
            )
        for shape, check in profile.spliceable.items():
            if check.refusal is RefusalReason.PINNED_SUFFIX_MISMATCH:
                raise ConfigError(
                    f"sglang_turn_suffix or sglang_eos_markers contradict the chat template ({shape}: {check.detail}); "
                    "leave them out to have them derived from it",
                    param="sglang_turn_suffix",
                )
        if self._config.splices_history and profile.problems:
            self._log.warning(
                "with this chat template some turns start a new segment: %s", "; ".join(profile.problems)
            )
        return profile

    def _check_that_messages_show(self, local: LocalRenderer, profile: TemplateProfile) -> None:
        """With a template that cannot show one message every turn would be a 400, or answer a prompt without it."""
        config = self._config
        message = normalise_messages(({"role": "user", "content": TEMPLATE_PROBE},), profile.forms)
        shown = local.render(
            RenderRequest(
                message, PROBE_TOOLS if profile.needs_tools else None, config.chat_template_kwargs or {}, True
            )
        )
        if isinstance(shown, Rendered) and TEMPLATE_PROBE in shown.text:
            return
        given = (
            name for name in ("sglang_chat_template", "sglang_chat_template_path") if getattr(config, name)
        )
        param = next(given, "sglang_tokenizer")
        why = shown.message if isinstance(shown, RenderFailed) else "its text does not stand in the prompt"
        raise ConfigError(f"{param}: the chat template cannot show a user message: {why}", param=param)

    async def _compare_tokenizers(self, local: LocalRenderer, client: NeMoGymAsyncOpenAI) -> None:
        """The engine's tokenizer must be the one that is loaded here: other ids are another prompt."""
        text = TOKENIZER_PROBE + "".join(local.tokens.texts)
        try:
            answer = await client.create_tokenize(
                model=self._config.model, prompt=text, add_special_tokens=False
            )
        except UpstreamStatusError as error:
            self._log.warning(
                "the engine's tokenizer cannot be compared with the local one: %s", error.message
            )
            return
        ours = await local.compute(lambda encode: list(encode(text)))
        if answer.get("tokens") != ours:
            raise UpstreamContractError(
                f"{self._config.name}: the tokenizer loaded here is not the engine's: a test text has {len(ours)} ids "
                "here and others there. Set sglang_tokenizer to the engine's tokenizer, or sglang_renderer: server"
            )
