"""POST /tokenize and /detokenize, in vLLM's shapes."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import RequestError
from pelton.http.body import read_json
from pelton.http.openai.logprobs import TokenNames
from pelton.http.openai.models import check_model
from pelton.http.openai.parameters import check_in_vocabulary
from pelton.http.openai.prompts import chat_prompt, encode_texts
from pelton.http.openai.requests import DetokenizeBody, TokenizeBody
from pelton.http.openai.responses import Detokenized, Tokenized
from pelton.http.service import Service

_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
_encode = msgspec.json.Encoder().encode


async def tokenize(service: Service, request: Request) -> Response:
    """Ids of a prompt (with what the model adds, usually BOS) or of a chat (as its template writes it)."""
    body = await read_json(request, _tokenize_decoder)
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        add_special_tokens = body.add_special_tokens is not False
        texts = [body.prompt]
        token_ids = (await encode_texts(service, texts, add_special_tokens=add_special_tokens, max_model_len=None))[0]
    else:
        add_special_tokens = bool(body.add_special_tokens)
        token_ids = await chat_prompt(service, body, max_model_len=None, add_special_tokens=add_special_tokens)
    names = TokenNames(tokenizer, as_ids=False)
    token_strings = [names.name(token_id) for token_id in token_ids] if body.return_token_strs else None
    answer = Tokenized(len(token_ids), service.max_model_len, token_ids, token_strings)
    return Response(_encode(answer), media_type="application/json")


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    body = await read_json(request, _detokenize_decoder)
    check_model(service, body.model)
    tokenizer = service.engine.tokenizer
    check_in_vocabulary("tokens", body.tokens, tokenizer.vocab_size)
    answer = Detokenized(tokenizer.decode(body.tokens, skip_special_tokens=False))
    return Response(_encode(answer), media_type="application/json")
