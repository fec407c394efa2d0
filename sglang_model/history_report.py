"""What a response says about its history, for programs: two headers and a field that OpenAI clients ignore."""

from __future__ import annotations

from starlette.requests import Request

from nemo_gym.metrics import Metrics
from nemo_gym.response_headers import add_response_header
from sglang_model.history import HistoryStatus, PromptPlan
from sglang_model.splice_types import HistoryNote

HISTORY_HEADER = "x-sglang-history"
HISTORY_REASON_HEADER = "x-sglang-history-reason"


def report_history(request: Request, plan: PromptPlan, metrics: Metrics) -> None:
    """Send the plan's status and reason with the response, whether it becomes an answer or an error, and count them."""
    if isinstance(getattr(request, "scope", None), dict):
        add_response_header(request, HISTORY_HEADER, plan.status.value)
        add_response_header(request, HISTORY_REASON_HEADER, plan.reason)
    metrics.count(f"history_{plan.status.value}")
    if plan.note is not HistoryNote.UNKNOWN:
        metrics.count(f"history_rendering_{plan.note.value}")
    if plan.status is HistoryStatus.RERENDERED:
        metrics.count(f"history_broken_{plan.reason}")


def history_field(plan: PromptPlan) -> dict[str, object]:
    """The same as JSON, with what is particular about a splice; `kept_tokens` is where the new part begins."""
    return {
        "history": plan.status.value,
        "reason": plan.reason,
        "kept_tokens": plan.kept_tokens,
        "flags": sorted(flag.value for flag in plan.flags),
        "rendering_of_history": plan.note.value,
    }
