"""Log probabilities of prompts: vLLM's list of objects by token id, and the lists that echo a prompt."""

import asyncio
import codecs
from collections.abc import Callable, Sequence

from pelton.errors import RequestError
from pelton.http.openai.logprobs import TokenNames, top_by_name, written
from pelton.http.openai.prompts import Prompt
from pelton.http.openai.responses import CompletionLogprobs, PromptLogprob, PromptLogprobs
from pelton.tokenizer import Tokenizer
from pelton.types import SamplingParams, TokenLogprobs

MAX_ENTRIES = 2**19
MAX_STREAMED_ENTRIES = 2**15  # encoded by the event loop, in one piece for each choice
MAX_INLINE_ENTRIES = 2**12  # about ten milliseconds of encoding; more go to a thread


def num_entries(prompts: Sequence[Prompt], params: SamplingParams) -> int:
    """How many log probabilities of prompt tokens an answer holds for each choice of its prompts, about."""
    count = params.prompt_logprobs
    return 0 if count is None else (count + 1) * sum(len(prompt.token_ids) for prompt in prompts)


def check_num_entries(prompts: Sequence[Prompt], params: SamplingParams, *, streamed: bool) -> None:
    """RequestError where log probabilities of prompts would fill the memory or hold up others."""
    most = MAX_STREAMED_ENTRIES if streamed else MAX_ENTRIES
    num_asked = num_entries(prompts, params) * params.n
    if num_asked > most:
        raise RequestError(
            f"prompt: {num_asked} log probabilities of prompt tokens are too many, at most {most} fit into one "
            f"{'stream' if streamed else 'answer'}; send fewer prompts or ask for fewer tokens at each position",
            param="prompt",
        )


async def off_loop_if_long(prompts: Sequence[Prompt], params: SamplingParams, encode: Callable[[], bytes]) -> bytes:
    """What `encode` gives, from a thread where log probabilities of prompts make it long."""
    is_long = params.prompt_logprobs is not None and num_entries(prompts, params) * params.n > MAX_INLINE_ENTRIES
    return await asyncio.to_thread(encode) if is_long else encode()


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def by_token_id(names: TokenNames, entries: Sequence[TokenLogprobs], count: int) -> PromptLogprobs:
    """vLLM's shape: null for the first token, then for each the token itself and the `count` most likely ones."""
    return [None, *(_ranked(names, entry, count) for entry in entries)]


def _ranked(names: TokenNames, entry: TokenLogprobs, count: int) -> dict[str, PromptLogprob]:
    ranked = {entry.token_id: (entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(entry.top[:count], start=1):
        ranked.setdefault(token_id, (logprob, rank))
    return {
        str(token_id): PromptLogprob(written(logprob), rank, names.text(token_id))
        for token_id, (logprob, rank) in ranked.items()
    }


def echoed_logprobs(
    tokenizer: Tokenizer,
    names: TokenNames,
    token_ids: Sequence[int],
    text: str,
    entries: Sequence[TokenLogprobs],
    count: int,
) -> CompletionLogprobs:
    """The lists of an echoed prompt, of which `text` is the text. The first token has no log probability.

    Joined, the tokens are the text: one that is not in it (a BOS that the tokenizer added, a hidden special token) is
    written as "", and the first word without the space that sentencepiece vocabularies put before it.
    """
    shape = CompletionLogprobs([], [], [], [])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    for position, token_id in enumerate(token_ids):
        name = names.name(token_id)
        data = tokenizer.token_bytes(token_id)
        if token_id in tokenizer.special_ids and not text.startswith(data.decode(errors="replace"), offset):
            name, data = names.hidden(token_id), b""
        elif offset == 0 and data.startswith(b" ") and not text.startswith(" "):
            name, data = name.removeprefix(" "), data[1:]
        shape.tokens.append(name)
        shape.text_offset.append(offset)
        offset += len(decoder.decode(data))
        entry = entries[position - 1] if position else None
        shape.token_logprobs.append(None if entry is None else written(entry.logprob))
        shape.top_logprobs.append(None if entry is None else top_by_name(names, entry, count))
    return shape
