"""How to read the turns of one request: its style, its tools, and whether its prompt has opened the reasoning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pelton.config import EngineConfig
from pelton.errors import RequestError
from pelton.http.openai.constraints import constraint_of
from pelton.http.openai.parts import PlainText, TurnParser
from pelton.http.openai.requests import ChatBody
from pelton.http.service import Service
from pelton.http.tools import reasoning
from pelton.http.tools.definitions import ToolUse
from pelton.http.tools.grammar import TurnGrammar
from pelton.http.tools.reader import CallRules, TurnReader
from pelton.http.tools.styles import READERS, call_style, has_reasoning
from pelton.http.tools.syntax import CallSyntax, call_syntax
from pelton.tokenizer import Tokenizer
from pelton.types import SamplingParams


@dataclass(frozen=True, slots=True)
class TurnStyle:
    """How a model's turn is read, and written where a grammar has it. `reader` is None where it may call nothing."""

    reader: type[TurnReader] | None
    syntax: CallSyntax
    has_reasoning: bool

    def shown_special_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The special tokens among the marks that parsers look for."""
        marks = (self.reader.marks if self.reader else ()) + (reasoning.MARKS if self.has_reasoning else ())
        ids = (tokenizer.special_id(mark) for mark in marks)
        return tuple(token_id for token_id in ids if token_id is not None)


def turn_style(config: EngineConfig, tokenizer: Tokenizer, body: ChatBody, use: ToolUse) -> TurnStyle:
    """As the settings say, or else the chat template of this request."""
    template = body.chat_template or tokenizer.own_chat_template(with_tools=bool(body.tools))
    name = call_style(config.tool_call_parser, template)
    if name == "pythonic" and (use.is_enforced or constraint_of(body) is not None):
        name = "llama3_json"  # the syntax that stands in for Python in grammars
    reader = None if use.mode == "none" else READERS[name]
    return TurnStyle(reader, call_syntax(name, template), has_reasoning(config.reasoning_parser, template))


async def constrain_turn(
    service: Service, params: SamplingParams, style: TurnStyle, use: ToolUse, *, is_open: bool
) -> SamplingParams:
    """The parameters with a grammar of the whole turn in the place of the one for its answer, where calls are enforced
    or reasoning comes first.

    Raises:
        RequestError: a tool's schema is not supported, or the request constrains the answer where only calls may be.
    """
    if not (use.is_enforced or params.grammar is not None or any(tool.strict for tool in use.tools)):
        return params
    if use.is_enforced and params.grammar is not None:
        raise RequestError(
            "tool_choice: where a call must be made there is no answer to constrain; leave out response_format and "
            "structured_outputs, or set tool_choice to auto",
            param="tool_choice",
        )

    def write() -> str | None:
        return TurnGrammar(service.engine.tokenizer).of_turn(
            use, style.syntax, has_reasoning=style.has_reasoning, is_open=is_open, answer=params.grammar
        )

    # A schema takes about a millisecond, and agents bring dozens of tools.
    grammar = await service.text_pool.run(write) if use.tools else write()
    if grammar is None or grammar == params.grammar:
        return params
    grammar = await service.grammars.check(grammar, "tools" if use.tools else "response_format")
    return msgspec.structs.replace(params, grammar=grammar)


def new_parser(style: TurnStyle, use: ToolUse, *, is_open: bool, is_shown: bool) -> Callable[[], TurnParser]:
    """Makes the parser of each choice. `is_open`: the prompt has opened the reasoning. `is_shown`: not left out."""
    rules = CallRules(
        names=frozenset(tool.name for tool in use.tools),
        one_call=not use.parallel,
        only_calls=use.is_enforced,
        is_named=use.mode == "named",
    )

    def answer() -> TurnParser:
        return PlainText() if style.reader is None else style.reader(rules)

    if not style.has_reasoning:
        return answer
    return lambda: reasoning.ReasoningSplitter(answer(), is_open=is_open, is_shown=is_shown)


def opens_reasoning(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends with the mark that begins reasoning."""
    tail = tokenizer.decode(prompt_ids[-8:], skip_special_tokens=False, continuation=True)
    return tail.rstrip().endswith(reasoning.OPEN)
