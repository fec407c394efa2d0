"""docs/configuration.md, made from the configuration classes: `make docs` writes it, a test compares it.

The sentences are the attribute docstrings of the fields, so that a setting is described in one place only.
"""

from __future__ import annotations

import sys
import types
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from nemo_gym.http_pool import HTTPClientConfig
from sglang_model.config import SGLangModelConfig
from vllm_model.config import VLLMModelConfig

INTRODUCTION = """\
# Configuration

Generated from the configuration classes by `make docs`; a test compares it.

A server block stands in YAML under `<name>.responses_api_models.<sglang_model or vllm_model>`. Unknown keys are
refused. `sglang_model` has the settings of all four tables, `vllm_model` those of the last three.
"""

SECTIONS: tuple[tuple[str, type[BaseModel], type[BaseModel] | None], ...] = (
    ("SGLang (`SGLangModelConfig`)", SGLangModelConfig, VLLMModelConfig),
    ("Engine and flow (`VLLMModelConfig`)", VLLMModelConfig, BaseResponsesAPIModelConfig),
    ("Server (`BaseResponsesAPIModelConfig`)", BaseResponsesAPIModelConfig, None),
    ("Connections, `http_client:` (`HTTPClientConfig`)", HTTPClientConfig, None),
)


def configuration_reference() -> str:
    """The whole page as Markdown. Raises ValueError when a setting has no docstring."""
    return "\n".join([INTRODUCTION, *(_section(*section) for section in SECTIONS)])


def _section(title: str, model: type[BaseModel], parent: type[BaseModel] | None) -> str:
    inherited = parent.model_fields if parent is not None else {}
    rows = [_row(model, name, field) for name, field in model.model_fields.items() if name not in inherited]
    return "\n".join(
        [
            f"## {title}",
            "",
            "| setting | type | default | what it does |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _row(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if not field.description:
        raise ValueError(f"{model.__name__}.{name} has no docstring")
    cells = (f"`{name}`", type_name(field.annotation), _default(field), " ".join(field.description.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or default is PydanticUndefined:
        return "unset"
    if isinstance(default, BaseModel):
        return "see below"
    if isinstance(default, frozenset):
        return ", ".join(f"`{value}`" for value in sorted(default))
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def type_name(annotation: object) -> str:
    """A type as a reader of YAML says it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(argument) for argument in arguments if argument is not types.NoneType)
    if origin in (list, tuple, frozenset):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return "mapping"
    if origin is not None and arguments:  # Annotated
        return type_name(arguments[0])
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if isinstance(annotation, type):
        return names.get(annotation, "block" if issubclass(annotation, BaseModel) else annotation.__name__)
    return str(annotation)


if __name__ == "__main__":
    sys.stdout.write(configuration_reference())
