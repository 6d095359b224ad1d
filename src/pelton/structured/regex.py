"""Checks regular expressions and brings them into the form that a grammar takes.

The syntax is that of Rust's regex crate: no lookaround, no backreferences, no word boundaries. They are matched by
derivatives, so nested quantifiers cost nothing; counted repetition is what makes one large, and is bounded.
"""

import re

from pelton.errors import RequestError
from pelton.structured.limits import MAX_REGEX_LENGTH, MAX_REPEAT

_PART = re.compile(
    r"""\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|[uU]\{[^}]*\}|.)   # an escape
    | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]            # a class
    | \((?:\?(?:<[=!]|[=!:]|P?<\w+>|P=\w+|[\w-]+[:)]?))? # a group opens
    | \)
    | \{(\d+)(?:(,)(\d*))?\}                             # counted repetition
    | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNFIT_FOR_LARK = re.compile(r"\\.|/|\n", re.DOTALL)
# Members of a class that mean the same in every language, where the class takes them and where it excludes them.
_TAKEN = {
    r"\d": "0-9",
    r"\w": "0-9A-Za-z_",
    r"\s": r" \t\n\r\f\x0b",
    r"\D": r"\P{Nd}",
    r"\W": r"[^\p{L}\p{M}\p{N}\p{Pc}]",
    r"\S": r"[^\s\x{FEFF}]",
}
_EXCLUDED = {
    r"\d": r"\p{Nd}",
    r"\w": r"\p{L}\p{M}\p{N}\p{Pc}",
    r"\s": r"\s\x{FEFF}",
    r"\D": "[^0-9]",
    r"\W": "[^0-9A-Za-z_]",
    r"\S": r"[^ \t\n\r\f\x0b]",
}
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


def check_regex(regex: str, param: str, where: str = "") -> None:
    """RequestError if the expression is too long, repeats too often or needs lookaround or backreferences.

    What is no regular expression at all is found later, by the grammar's compiler.

    Args:
        where: stands before the reason in the message, e.g. the place in a schema.
    """
    if len(regex) > MAX_REGEX_LENGTH:
        raise RequestError(f"{param}: {where}regex is longer than {MAX_REGEX_LENGTH} characters", param=param)
    reason = _reason_against(regex)
    if reason is not None:
        raise RequestError(f"{param}: {where}regex {_shown(regex)}: {reason}", param=param)


def lark_regex(regex: str) -> str:
    """The expression between slashes, as a Lark terminal."""
    return "/" + _UNFIT_FOR_LARK.sub(_fit_for_lark, regex) + "/"


def portable_regex(regex: str) -> str:
    r"""The expression with \d, \w and \s as narrow as in any language: what it matches, it matches in all of them.

    JavaScript's \w, which JSON Schema means, is ASCII; Python's is Unicode, and so its \W takes fewer characters.
    """
    return _PART.sub(_portable_part, regex)


def _portable_part(match: re.Match[str]) -> str:
    part = match[0]
    if part.startswith("[^"):
        return _ESCAPED.sub(lambda escape: _EXCLUDED.get(escape[0], escape[0]), part)
    if part.startswith("["):
        return _ESCAPED.sub(lambda escape: _TAKEN.get(escape[0], escape[0]), part)
    narrow = _TAKEN.get(part)
    return part if narrow is None else f"[{narrow}]"


def _fit_for_lark(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(match[0], match[0])


def _reason_against(regex: str) -> str | None:
    """Walks over the parts with a stack of open groups; each entry is the repetition inside the group so far."""
    largest = [1]
    last = 1  # of the part that a quantifier would repeat
    end = 0
    for match in _PART.finditer(regex):
        part, end = match[0], match.end()
        if part == "\\":
            return "it ends with a backslash"
        if part.startswith(_LOOKAROUND):
            return "lookaround is not supported"
        if part.startswith("(?P=") or (part[0] == "\\" and (part[1] in "123456789" or part[1:2] == "k")):
            return "backreferences are not supported"
        if part in ("\\b", "\\B"):
            return "word boundaries are not supported"
        if part[0] == "(" and part[-1] != ")":
            largest.append(1)
            last = 1
        elif part == ")" and len(largest) > 1:
            last = largest.pop()
            largest[-1] = max(largest[-1], last)
        elif match[1] is not None:
            last *= max(int(match[3] or match[1]) if len(match[3] or match[1]) < 9 else MAX_REPEAT + 1, 1)
            largest[-1] = max(largest[-1], last)
        elif part not in ("*", "+", "?"):
            last = 1
        if largest[-1] > MAX_REPEAT:
            return f"it repeats a part more than {MAX_REPEAT} times"
    assert end == len(regex)
    return None


def _shown(regex: str) -> str:
    return repr(regex if len(regex) <= 60 else regex[:60] + "...")
