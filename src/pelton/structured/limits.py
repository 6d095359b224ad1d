"""Bounds on what a client may constrain an output with. Server and engine share them."""

MAX_SCHEMA_BYTES = 256 * 1024  # as JSON text
MAX_GRAMMAR_BYTES = 256 * 1024  # Lark, GBNF or EBNF text as a client sends it
MAX_COMPILED_BYTES = 2 * 1024 * 1024  # of a grammar that was made of all parts of a request
MAX_REGEX_LENGTH = 16 * 1024  # in characters
MAX_REPEAT = 10_000  # counted repetitions of a regex, nested ones multiplied
MAX_CHOICES = 10_000
MAX_CHOICES_BYTES = 256 * 1024
MAX_TAGS = 128  # of a structural tag
MAX_DEPTH = 100  # of a schema

MAX_MASK_SECONDS = 0.1  # of processor time, for the first token

# Keyword arguments of llguidance.LLParserLimits, which is not imported here: it takes long, and the server only hands
# grammars on. Fuel and items bound the time of a step, states bound memory (1 to 2 kB each).
PARSER_LIMITS = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
