"""CallSyntax: how a style writes calls, for the grammars that make a model write them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """A turn of calls is `opening`, calls with `separator` between, `closing`; a call is `begin`, arguments, `end`.

    `begin` has the tool's name at {name}. `trigger`, if any, begins every call and nothing else.
    """

    begin: str
    end: str
    separator: str
    opening: str = ""
    closing: str = ""
    trigger: str = ""


HERMES = CallSyntax(
    begin='<tool_call>\n{"name": "{name}", "arguments": ', end="}\n</tool_call>", separator="\n", trigger="<tool_call>"
)
LLAMA3 = CallSyntax(begin='{"name": "{name}", "parameters": ', end="}", separator="; ")
MISTRAL = CallSyntax(begin="[TOOL_CALLS]{name}[ARGS]", end="", separator="", trigger="[TOOL_CALLS]")
MISTRAL_LIST = CallSyntax(
    begin='{"name": "{name}", "arguments": ', end="}", separator=", ", opening="[TOOL_CALLS] [", closing="]"
)


def call_syntax(style: str, template: str | None) -> CallSyntax:
    """The syntax of a style; Mistral's depends on the model. Calls as Python have none, JSON stands in for them."""
    match style:
        case "hermes":
            return HERMES
        case "mistral":
            return MISTRAL if "[ARGS]" in (template or "") else MISTRAL_LIST
        case _:
            return LLAMA3
