"""Medians over the rounds, ratios to the best peer and shares of the machine's limits, as tables and as JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from peers.catalog import Engine, ModelShape
from peers.measure import Round, Workload

# Circumstances, and what is often exactly zero: no ratios.
NEUTRAL = ("prompt_tokens", "prefix_prompt_tokens", "other_load", "client_cpu", "idle_cpu")
HIGHER_IS_BETTER = ("tok_s", "requests_s")
NOTABLE_VARIATION = 0.15


@dataclass(slots=True)
class Row:
    """An engine on a model. `ratios` above 1 are better than the best peer, `shares` are fractions of a limit."""

    engine: Engine
    rounds: list[Round] = field(default_factory=list[Round])
    medians: dict[str, float] = field(default_factory=dict[str, float])
    ratios: dict[str, float] = field(default_factory=dict[str, float])
    shares: dict[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> dict[str, object]:
        return {
            "command": " ".join(self.engine.command),
            "medians": self.medians,
            "ratios_to_best_peer": self.ratios,
            "shares_of_limits": self.shares,
            "rounds": [{"metrics": each.metrics, "problems": each.problems} for each in self.rounds],
        }


def summarize_rows(
    rows: Sequence[Row], shape: ModelShape, workload: Workload, limits: Mapping[str, float], bandwidth: str
) -> None:
    """Fill in medians, ratios and shares of all rows of one model; `bandwidth` names a limit."""
    for row in rows:
        names = dict.fromkeys(name for each in row.rounds for name in each.metrics)
        row.medians = {
            name: statistics.median(each.metrics[name] for each in row.rounds if name in each.metrics) for name in names
        }
        row.shares = _shares(row, shape, workload, limits, bandwidth)
    for row in rows:
        row.ratios = _ratios(row, [other for other in rows if other.engine.is_peer and other.rounds])


def _ratios(row: Row, peers: Sequence[Row]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for name, value in row.medians.items():
        others = [peer.medians[name] for peer in peers if name in peer.medians]
        if name.startswith(NEUTRAL) or not others:
            continue
        if name.startswith(HIGHER_IS_BETTER):
            numerator, denominator = value, max(others)
        else:
            numerator, denominator = min(others), value
        if denominator > 0:
            ratios[name] = numerator / denominator
    return ratios


def _shares(
    row: Row, shape: ModelShape, workload: Workload, limits: Mapping[str, float], bandwidth: str
) -> dict[str, float]:
    """Operations of the weights over the peak of bf16 and int8, and what one stream reads over the bandwidth.

    The peaks are the same for all engines, whatever they multiply in; bytes count each engine's own weights.
    """
    shares: dict[str, float] = {}
    values, output_len = row.medians, workload.output_len
    for clients in workload.requests:
        if f"tok_s_c{clients}" not in values:
            continue
        prompt = round(values[f"prompt_tokens_c{clients}"])
        served = shape.operations(prompt + output_len, output_len) * values[f"requests_s_c{clients}"]
        prefill = shape.operations(prompt, 1) / max(values[f"ttft_p50_ms_c{clients}"] / 1000, 1e-9)
        for kind in ("bf16", "int8"):
            if kind in limits:
                shares[f"{kind}_c{clients}"] = served / limits[kind]
                if clients == 1:
                    shares[f"{kind}_prefill"] = prefill / limits[kind]
        if clients == 1 and bandwidth in limits and values["tpot_ms_c1"] > 0:
            step = shape.step_bytes(row.engine.bits, row.engine.head_bits, prompt + output_len // 2)
            shares["bandwidth"] = step / (values["tpot_ms_c1"] / 1000) / limits[bandwidth]
    return shares


def markdown(rows: Sequence[Row], shape: ModelShape, workload: Workload) -> str:
    """One table for each number of clients and one for the rest. In brackets: times better than the best peer."""
    tables = [_load_table(rows, shape, clients) for clients in workload.requests]
    tables.append(_rest_table(rows, shape, workload))
    doubts = [
        f"- {row.engine.name}, round {index}: {problem}"
        for row in rows
        for index, each in enumerate(row.rounds, 1)
        for problem in each.problems
    ]
    doubts += [f"- {row.engine.name}: {problem}" for row in rows for problem in _variations(row, workload)]
    return "\n\n".join([*tables, *(["Doubts:\n" + "\n".join(doubts)] if doubts else [])])


# Column, metric, decimals, unit factor.
Column = tuple[str, str, int, float]


def _load_table(rows: Sequence[Row], shape: ModelShape, clients: int) -> str:
    columns: list[Column] = [
        ("out tok/s", f"tok_s_c{clients}", 1, 1),
        ("TTFT p50 ms", f"ttft_p50_ms_c{clients}", 0, 1),
        ("p99", f"ttft_p99_ms_c{clients}", 0, 1),
        ("TPOT ms", f"tpot_ms_c{clients}", 1, 1),
        ("ITL p99 ms", f"itl_p99_ms_c{clients}", 1, 1),
    ]
    shares = [("of bf16", f"bf16_c{clients}"), ("of int8", f"int8_c{clients}")]
    if clients == 1:
        shares = [
            ("prefill of bf16", "bf16_prefill"),
            ("of int8", "int8_prefill"),
            ("stream of bandwidth", "bandwidth"),
        ]
    title = f"### {shape.name}, {clients} client{'s' * (clients > 1)}"
    return f"{title}\n\n{_table(rows, columns, shares)}"


def _rest_table(rows: Sequence[Row], shape: ModelShape, workload: Workload) -> str:
    columns: list[Column] = [
        ("start to first token s", "start_s", 2, 1),
        ("memory GiB", "memory_gib", 2, 1),
        (f"TTFT of {workload.prefix_len} words ms", "prefix_first_ms", 0, 1),
        ("sent again", "prefix_again_ms", 1, 1),
        ("idle CPU %", "idle_cpu", 1, 100),
    ]
    return f"### {shape.name}, start, memory, prefix, idle\n\n{_table(rows, columns, [])}"


def _table(rows: Sequence[Row], columns: Sequence[Column], shares: Sequence[tuple[str, str]]) -> str:
    header = ["engine", *(column[0] for column in columns), *(share[0] for share in shares)]
    lines = [
        [row.engine.name, *(_cell(row, column) for column in columns), *(_share(row, name) for _, name in shares)]
        for row in rows
    ]
    return _lines(header, lines)


def _cell(row: Row, column: Column) -> str:
    """A median, and in brackets how many times better than the best peer it is (not in the rows of peers)."""
    _, name, decimals, factor = column
    if name not in row.medians:
        return "-"
    text, ratio = f"{factor * row.medians[name]:,.{decimals}f}", row.ratios.get(name)
    return text if ratio is None or row.engine.is_peer else f"{text} ({ratio:.2f}x)"


def _variations(row: Row, workload: Workload) -> list[str]:
    """Throughputs that differ much from round to round."""
    found: list[str] = []
    for name in (f"tok_s_c{clients}" for clients in workload.requests):
        values = [each.metrics[name] for each in row.rounds]
        if values and max(values) > (1 + NOTABLE_VARIATION) * min(values):
            found.append(f"{name} went from {min(values):.1f} to {max(values):.1f} over the rounds")
    return found


def _share(row: Row, name: str) -> str:
    return f"{row.shares[name]:.0%}" if name in row.shares else "-"


def _lines(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, marks, *lines))


def limits_table(limits: Mapping[str, float]) -> str:
    """The best samples, in units of 10^9."""
    cells = [[name, f"{value / 1e9:,.1f}"] for name, value in limits.items()]
    return "### the machine's limits\n\n" + _lines(["limit", "GB/s or 10^9 op/s"], cells)
