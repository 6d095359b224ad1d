"""The string formats of JSON Schema as regular expressions, narrow enough that common parsers take every match."""

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # 0000 is no year to most calendars
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_SECONDS = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS = "(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"  # at most 63; "--" would begin an encoded name
_HOST = f"{_LABEL}(?:\\.{_LABEL}){{0,3}}"  # at most 255
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_HEX = "[0-9A-Fa-f]{1,4}"
_IPV6 = "(?:" + "|".join(
    [f"(?:{_HEX}:){{7}}{_HEX}", f"::(?:{_HEX}(?::{_HEX}){{0,6}})?"]
    + [f"{_HEX}(?::{_HEX}){{{before - 1}}}::(?:{_HEX}(?::{_HEX}){{0,{6 - before}}})?" for before in range(1, 7)]
) + ")"  # fmt: skip
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_URI_CHAR = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI_TAIL = f"(?:/{_URI_CHAR}*)*(?:\\?(?:{_URI_CHAR}|[/?])*)?(?:#(?:{_URI_CHAR}|[/?])*)?"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_SECONDS})?|{_SECONDS}|[0-9]{{1,9}}W)",
    "email": f"{_ATOM}{{1,30}}(?:\\.{_ATOM}{{1,30}}){{0,1}}@{_LABEL}(?:\\.{_LABEL}){{1,2}}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": f"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?::[0-9]{{1,4}})?{_URI_TAIL}",
    "json-pointer": _POINTER,
    # Python's usual validator takes no digit behind a zero.
    "relative-json-pointer": f"(?:0|[1-9]{{1,8}}0?)(?:#|{_POINTER})",
}
"""What a string of the format must match as a whole."""

UNSUPPORTED_FORMATS = frozenset(
    {"idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "regex"}
)
"""Formats of the specification that no regular expression here enforces. Others, not in it, are annotations."""
