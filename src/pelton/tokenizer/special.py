"""SpecialTokens: what a checkpoint says of its tokens beside the vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Tokens around texts, and chat templates (Jinja source) by name, "default" being the usual one."""

    bos_token: str | None = None
    eos_token: str | None = None
    eos_token_ids: tuple[int, ...] = ()  # every id that ends a sequence, the eos token's included
    chat_templates: Mapping[str, str] = field(default_factory=dict[str, str])
