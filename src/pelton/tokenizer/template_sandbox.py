"""A Jinja environment in which a template can neither reach the interpreter nor run or grow without bound.

A chat template comes with a model, or with a request where the operator allows it: it is code of a stranger. Jinja's
sandbox keeps it from Python's internals, but lets it loop and allocate for ever. Here each loop iteration, call and
operation looks at a deadline, each piece of text written counts against a limit, and operations whose result can be
much larger than their operands are checked before they run, or missing.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NoReturn, TypeGuard, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS as _UNTYPED_FILTERS  # pyright: ignore[reportUnknownVariableType]
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

MAX_TEMPLATE_CHARS = 1 << 16
MAX_TEXT_CHARS = 1 << 25  # of one string, and of all that a rendering writes (macros write twice)
MAX_ITEMS = 1 << 18  # of one container with all in it
MAX_RANGE = 100_000
MAX_SECONDS = 5.0

METER = " meter"  # a context variable whose name, with its space, no template can spell

_JINJA_FILTERS = cast("Mapping[str, Callable[..., Any]]", _UNTYPED_FILTERS)
_MAX_INT_BITS = 4096
_REFUSED_STR_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "format_map"})
_REFUSED_FILTERS = frozenset(
    {"batch", "center", "filesizeformat", "format", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr"}
)


class TemplateLimitError(Exception):
    """A template took too long or made too much."""


class Meter:
    """What one rendering may still do, and which message its outermost loop is at."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.message_index: int | None = None
        self._index_by_identity = {id(message): index for index, message in enumerate(messages)}
        self._deadline = time.monotonic() + MAX_SECONDS
        self._num_chars = 0

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it runs for more than {MAX_SECONDS:g} s")

    def enter(self, item: object) -> None:
        """Note a loop iteration; `item` is its variable."""
        self.tick()
        self.message_index = self._index_by_identity.get(id(item), self.message_index)

    def write(self, num_chars: int) -> None:
        self._num_chars += num_chars
        if self._num_chars > MAX_TEXT_CHARS:
            raise TemplateLimitError(f"it writes more than {MAX_TEXT_CHARS} characters")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates as transformers does: same options, same extra tags, functions and `tojson`.

    Render with a `Meter` as the variable METER.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Not optimized: the optimizer would evaluate constant expressions outside of any limit.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=_finalize,
        )
        kept = {name: run for name, run in _JINJA_FILTERS.items() if name not in _REFUSED_FILTERS}
        self.filters = {name: _bounded(run) for name, run in (kept | _FILTERS).items()} | _METER_FILTERS
        self.globals = dict(_GLOBALS)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401 (Jinja's signature)
        refused = isinstance(obj, str) and attr in _REFUSED_STR_METHODS
        return not refused and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N805 (Jinja's)
        _meter(__context).tick()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        receiver = getattr(method, "__self__", None)
        if isinstance(receiver, str):
            _check_str_method(receiver, method.__name__, args, kwargs)
        return _checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 (Jinja's)
        _meter(context).tick()
        _check_operation(operator, left, right)
        return _checked(super().call_binop(context, operator, left, right))

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        """Jinja's hook between parsing and code generation."""
        _insert_meters(source)
        source.set_environment(self)
        return super()._generate(source, name, filename, defer_init)


class _GenerationTag(Extension):
    """{% generation %} marks what the assistant says, for training; here it only holds its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _insert_meters(tree: nodes.Template) -> None:
    """Count what compiled code does without asking the environment: iterations, literal text, `~` and literals."""
    for loop in tree.find_all(nodes.For):
        item = nodes.Name(loop.target.name, "load") if isinstance(loop.target, nodes.Name) else nodes.Const(None)
        loop.body.insert(0, nodes.ExprStmt(_apply(_ENTER, item)))
    for output in tree.find_all(nodes.Output):
        num_chars = sum(len(node.data) for node in output.nodes if isinstance(node, nodes.TemplateData))
        if num_chars:
            output.nodes.append(_apply(_WRITE, nodes.Const(num_chars)))
    _wrap_growing(tree)


def _wrap_growing(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_wrapped(item) for item in cast("list[object]", value)])
        else:
            setattr(node, name, _wrapped(value))


def _wrapped(value: object) -> object:
    """A literal or concatenation with a check around it; anything else as it is, checked inside."""
    if not isinstance(value, nodes.Node):
        return value
    _wrap_growing(value)
    if isinstance(value, nodes.Tuple) and value.ctx != "load":  # the names on the left of an assignment
        return value
    if isinstance(value, nodes.List | nodes.Dict | nodes.Tuple | nodes.Concat):
        return _apply(_CHECK, value)
    return value


def _apply(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _meter(context: Context) -> Meter:
    return context.parent[METER]


@jinja2.pass_context
def _finalize(context: Context, value: object) -> object:
    """Called with everything that {{ }} writes."""
    _meter(context).write(len(value) if isinstance(value, str) else _size(value))
    return value


@jinja2.pass_context
def _enter(context: Context, item: object) -> None:
    _meter(context).enter(item)


@jinja2.pass_context
def _write(context: Context, num_chars: int) -> str:
    _meter(context).write(num_chars)
    return ""


def _size(value: object) -> int:
    """The number of items in a value, its own included, plus the characters of its strings."""
    num_items, num_chars, left = 0, 0, [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            num_chars += len(item)
        elif isinstance(item, Mapping):
            mapping = cast("Mapping[object, object]", item)
            left += mapping.keys()
            left += mapping.values()
        elif _is_container(item):
            left += item
        num_items += 1
        if num_items + len(left) > MAX_ITEMS or num_chars > MAX_TEXT_CHARS:
            raise TemplateLimitError("it makes too large a value")
    return num_items + num_chars


def _checked(value: object) -> object:
    """Refuse a value that is too large, before another operation makes it larger still."""
    if isinstance(value, str | Mapping) or _is_container(value):
        _size(cast("object", value))
    return cast("object", value)


def _is_container(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, list | tuple | set)


def _check_chars(num_chars: int) -> None:
    if num_chars > MAX_TEXT_CHARS:
        raise TemplateLimitError("it makes too large a value")


def _check_operation(operator: str, left: object, right: object) -> None:
    """Refuse operations whose result may be much larger than their operands."""
    if operator == "%" and isinstance(left, str):
        _check_format("%", left, [right])
    elif operator == "*":
        for sequence, factor in ((left, right), (right, left)):
            if (isinstance(sequence, str) or _is_container(sequence)) and isinstance(factor, int):
                _check_product(sequence, factor)
    if operator in {"*", "**"} and isinstance(left, int) and isinstance(right, int):
        num_bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if num_bits > _MAX_INT_BITS:
            raise TemplateLimitError("it makes too large a number")


def _check_product(sequence: object, factor: int) -> None:
    num_chars = _size(sequence) * factor
    if not isinstance(sequence, str) and num_chars > MAX_ITEMS:
        raise TemplateLimitError("it makes too large a value")
    _check_chars(num_chars)


def _check_format(mark: str, text: str, values: Iterable[object]) -> None:
    """Refuse wide fields, widths taken from arguments, and one large argument in many fields."""
    if re.search(r"\d{4}|%[^%a-z]*\*" if mark == "%" else r"\d{4}|:[^}]*\{", text):
        raise TemplateLimitError("it formats with too wide a field")
    _check_chars(text.count(mark) * max([1000, *map(_size, values)]))


def _check_str_method(text: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    if name == "format":
        _check_format("{", text, [*args, *kwargs.values()])
    elif name == "replace":
        _check_replace(text, *args)
    elif name == "join" and args and not isinstance(args[0], str):
        if not _is_container(args[0]):
            raise TemplateLimitError("str.join takes a list here; use the filter join for anything else")
        _check_chars(_size(args[0]) + len(text) * len(args[0]))


def _check_replace(text: str, old: object = None, new: object = None, *_: object) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _check_chars(len(text) + text.count(old) * len(new))


def _bounded(run: Callable[..., object]) -> Callable[..., object]:
    """A filter whose result is checked."""

    @functools.wraps(run)  # carries Jinja's mark of what to pass first
    def bounded(*args: object, **kwargs: object) -> object:
        return _checked(run(*args, **kwargs))

    return bounded


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: unlike Jinja's own, without HTML escapes (as in transformers)."""
    _size(value)
    if indent is not None and indent > 16:
        raise TemplateLimitError("tojson indents by at most 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _replace(text: object, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(text), old, new)
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@jinja2.pass_environment
def _join(environment: jinja2.Environment, values: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    get = make_attrgetter(environment, attribute) if attribute is not None else None
    texts = [str(get(value) if get else value) for value in values]
    _check_chars(sum(map(len, texts)) + len(d) * len(texts))
    return str(d).join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_chars((text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))
    return _JINJA_FILTERS["indent"](text, width, first, blank)


@jinja2.pass_environment
def _sum(
    environment: jinja2.Environment, values: Iterable[object], attribute: str | None = None, start: object = 0
) -> object:
    if not isinstance(start, int | float):
        raise TemplateLimitError("sum adds numbers only")
    return _JINJA_FILTERS["sum"](environment, values, attribute, start)


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    if not -100 <= precision <= 100:
        raise TemplateLimitError("round takes at most 100 digits")
    return _JINJA_FILTERS["round"](value, precision, method)


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"it counts further than {MAX_RANGE}")
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _Namespace(Namespace):
    """Jinja's namespace; its text says nothing of its values, which may be namespaces again."""

    def __repr__(self) -> str:
        return "<Namespace>"


# Filters with a space in their names: only inserted code can use them.
_ENTER, _WRITE, _CHECK = " meter enter", " meter write", " meter check"
_METER_FILTERS = {_ENTER: _enter, _WRITE: _write, _CHECK: _checked}
_FILTERS = {
    "tojson": _tojson,
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "sum": _sum,
    "round": _round,
}
_GLOBALS = {
    "range": _range,
    "dict": dict,
    "namespace": _Namespace,
    "cycler": Cycler,
    "joiner": Joiner,
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}
