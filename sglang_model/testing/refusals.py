"""What SGLang says when something that the engine does not have is asked for: the texts of a server without it."""

from __future__ import annotations


def no_lora(adapter: str) -> str:
    """LoRA is off; chat also reads `base:adapter` out of the model name."""
    return (
        f"LoRA adapter '{adapter}' was requested, but LoRA is not enabled. Please launch the server with "
        "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
    )


def no_hidden_states(*, modes: bool) -> str:
    """Hidden states are off; 0.5.23 has `modes` of returning them."""
    if modes:
        return (
            "The server is not configured to return hidden states. Please set "
            "`--return-hidden-states-mode last`, `--return-hidden-states-mode full`, or the legacy "
            "`--enable-return-hidden-states` flag."
        )
    return (
        "The server is not configured to return the hidden states. Please set "
        "`--enable-return-hidden-states` to enable this feature."
    )
