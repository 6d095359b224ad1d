"""Which style a model writes its calls and its reasoning in: by setting, or by what its chat template mentions."""

from pelton.http.tools import reasoning
from pelton.http.tools.hermes import HermesReader
from pelton.http.tools.llama3 import Llama3Reader
from pelton.http.tools.mistral import MistralReader
from pelton.http.tools.pythonic import PythonicReader
from pelton.http.tools.reader import TurnReader

READERS: dict[str, type[TurnReader]] = {
    "hermes": HermesReader,
    "llama3_json": Llama3Reader,
    "mistral": MistralReader,
    "pythonic": PythonicReader,
}

# The first one that is in a template decides. Llama's templates name the role of a tool's answer "ipython".
_TEMPLATE_MARKS = (
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("ipython", "llama3_json"),
)


def call_style(setting: str, template: str | None) -> str:
    """A key of READERS. Templates that mention no calls are read as hermes, what most models have been trained on."""
    if setting != "auto":
        return setting
    return next((style for mark, style in _TEMPLATE_MARKS if mark in (template or "")), "hermes")


def has_reasoning(setting: str, template: str | None) -> bool:
    """Whether a turn may begin with <think>."""
    if setting != "auto":
        return setting != "none"
    return reasoning.CLOSE in (template or "") or reasoning.OPEN in (template or "")
