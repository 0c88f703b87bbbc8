"""ServeGen client windows (Xiang et al., ServeGen, arXiv 2505.09999; github.com/alibaba/ServeGen) as a workload.

A client is ``chunk-N-trace.csv`` (no header: window start s, rate 1/s, cv, pattern Gamma | Weibull | empty, shape,
scale; 600 s a window) and ``chunk-N-dataset.json`` (window start s -> ``input_tokens``, ``output_tokens``: each a
*string* that holds a Python dict {token count: probability}).

Arrivals of a window: n gaps of its pattern and shape, n drawn so that its mean is rate * length, stretched to fill
the window exactly. So the rate is the file's whatever the fitted scale (which for idle-heavy windows does not
reproduce it), the burstiness is the pattern's, and a window does not depend on those before it: any slice of a long
trace gives the same requests. Lengths are drawn from the latest distribution that is not empty, the first such one
before that.
"""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.trace.errors import TraceError
from loadgen.trace.public.text import lines_of
from loadgen.trace.rows import TraceRows, sorted_by_arrival
from tenants.measures.counts import MOST_TOKENS

NAME = "servegen"
_FILE = re.compile(r"chunk-(\d+)-trace\.csv")
_SECOND_NS = 1_000_000_000
_SHARE_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Window:
    """One window of arrivals: [start_s, start_s + length_s)."""

    start_s: float
    length_s: float
    rate: float
    cv: float
    pattern: str
    shape: float
    scale: float


@dataclass(frozen=True, slots=True)
class Pmf:
    """A distribution of token counts."""

    values: NDArray[np.int64]
    shares: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Client:
    """``lengths``: (window start s, prompt pmf, output pmf), those windows only that are not empty, in order of
    time.
    """

    number: int
    windows: tuple[Window, ...]
    lengths: tuple[tuple[float, Pmf, Pmf], ...]

    @property
    def name(self) -> str:
        return f"client-{self.number}"


def read_servegen(folder: Path | str) -> list[Client]:
    """Every client in ``folder``, by number. Raises TraceError with file, row and column."""
    root = Path(folder)
    found = {int(m.group(1)): path for path in root.glob("chunk-*-trace.csv") if (m := _FILE.fullmatch(path.name))}
    if not found:
        raise TraceError(root, "no chunk-N-trace.csv here: not a folder of ServeGen clients")
    return [read_client(found[number]) for number in sorted(found)]


def read_client(trace: Path) -> Client:
    """One client, from its ``chunk-N-trace.csv`` and the dataset beside it."""
    match = _FILE.fullmatch(trace.name)
    if match is None:
        raise TraceError(trace, "a name like chunk-0-trace.csv is expected")
    number = int(match.group(1))
    client = Client(number, _windows(trace), _lengths(trace.with_name(f"chunk-{number}-dataset.json")))
    if not client.lengths and any(window.rate > 0 for window in client.windows):
        raise TraceError(trace, f"client {number} sends requests but its dataset has no lengths")
    return client


def generate(
    clients: list[Client], *, start_s: float, duration_s: float, seed: int = 0, rate_factor: float = 1.0
) -> TraceRows:
    """The requests of all clients in [start_s, start_s + duration_s), start at 0; one tenant a client."""
    end_s = start_s + duration_s
    arrivals, prompts, outputs, tenants = [], [], [], []
    for code, client in enumerate(clients):
        for index, window in enumerate(client.windows):
            if window.rate <= 0 or window.start_s >= end_s or window.start_s + window.length_s <= start_s:
                continue
            rng = np.random.default_rng([seed, client.number, index])
            times = _arrivals(window, rng, rate_factor)
            prompt, output = _pmfs_at(client, window.start_s)
            drawn_in = rng.choice(prompt.values, len(times), p=prompt.shares)
            drawn_out = rng.choice(output.values, len(times), p=output.shares)
            inside = (times >= start_s) & (times < end_s)
            arrivals.append(np.rint((times[inside] - start_s) * _SECOND_NS).astype(np.int64))
            prompts.append(drawn_in[inside])
            outputs.append(drawn_out[inside])
            tenants.append(np.full(int(inside.sum()), code, dtype=np.int32))
    empty = [np.empty(0, dtype=np.int64)]
    rows = TraceRows(
        source=NAME,
        arrival_ns=np.concatenate(arrivals or empty),
        prompt_tokens=np.concatenate(prompts or empty),
        output_tokens=np.concatenate(outputs or empty),
        tenants=tuple(client.name for client in clients),
        tenant=np.concatenate(tenants or empty).astype(np.int32),
    )
    return sorted_by_arrival(rows, from_first=False)


def _arrivals(window: Window, rng: np.random.Generator, rate_factor: float) -> NDArray[np.float64]:
    mean = window.rate * rate_factor * window.length_s
    n = int(mean) + int(rng.random() < mean - int(mean))
    if n == 0:
        return np.empty(0)
    # n arrivals lie between n + 1 gaps; only their proportions matter, so no scale is needed.
    if window.pattern == "Gamma" and window.shape > 0:
        gaps = rng.gamma(window.shape, size=n + 1)
    elif window.pattern == "Weibull" and window.shape > 0:
        gaps = rng.weibull(window.shape, size=n + 1)
    else:
        gaps = rng.exponential(size=n + 1)
    total = float(gaps.sum())
    places = np.cumsum(gaps[:-1]) / total if total > 0 else np.sort(rng.random(n))
    return np.asarray(window.start_s + places * window.length_s)


def _pmfs_at(client: Client, time_s: float) -> tuple[Pmf, Pmf]:
    chosen = client.lengths[0]
    for entry in client.lengths:
        if entry[0] <= time_s:
            chosen = entry
    return chosen[1], chosen[2]


def _windows(path: Path) -> tuple[Window, ...]:
    rows: list[tuple[float, float, float, str, float, float]] = []
    lines = list(lines_of(path))
    for (number, _), fields in zip(lines, csv.reader(text for _, text in lines), strict=True):
        if not fields:
            continue
        if len(fields) != 6:
            raise TraceError(path, f"{len(fields)} fields, 6 are expected", row=number)
        pattern = fields[3].strip()
        if pattern not in {"", "Gamma", "Weibull"}:
            raise TraceError(path, f"pattern {pattern!r} is not Gamma, Weibull or empty", row=number)
        try:
            start, rate, cv, shape, scale = (float(fields[i] or 0) for i in (0, 1, 2, 4, 5))
        except ValueError as error:
            raise TraceError(path, f"not a number ({error})", row=number) from error
        if rows and start <= rows[-1][0]:
            raise TraceError(path, "windows must be in order of time", row=number)
        rows.append((start, rate, cv, pattern, shape, scale))
    widths = [later[0] - earlier[0] for earlier, later in pairwise(rows)]
    widths.append(widths[-1] if widths else 600.0)
    return tuple(
        Window(start, width, rate, cv, pattern, shape, scale)
        for (start, rate, cv, pattern, shape, scale), width in zip(rows, widths, strict=True)
    )


def _lengths(path: Path) -> tuple[tuple[float, Pmf, Pmf], ...]:
    if not path.is_file():
        raise TraceError(path, "missing: a client needs its dataset beside its trace")
    try:
        windows = msgspec.json.decode("\n".join(text for _, text in lines_of(path)), type=dict[str, dict[str, str]])
    except msgspec.DecodeError as error:
        raise TraceError(path, f"not as documented ({error})") from error
    found = []
    for start, columns in windows.items():
        prompt = _pmf(path, start, columns, "input_tokens")
        output = _pmf(path, start, columns, "output_tokens")
        if prompt is not None and output is not None:
            found.append((float(start), prompt, output))
    return tuple(sorted(found, key=lambda entry: entry[0]))


def _pmf(path: Path, window: str, columns: dict[str, str], column: str) -> Pmf | None:
    where = f"{window}.{column}"
    try:
        parsed = ast.literal_eval(columns[column])
        values = np.array([int(count) for count in parsed], dtype=np.int64)
        shares = np.array([float(share) for share in parsed.values()], dtype=np.float64)
    except (KeyError, ValueError, SyntaxError, TypeError, AttributeError, OverflowError) as error:
        raise TraceError(path, f"not a dict of token count: probability ({error})", column=where) from error
    if not len(values):
        return None
    if values.max() > MOST_TOKENS:
        raise TraceError(path, f"a token count of {values.max():,}; at most {MOST_TOKENS:,} can be true", column=where)
    if (shares < 0).any() or abs(shares.sum() - 1) > _SHARE_ERROR:
        raise TraceError(path, f"probabilities sum to {shares.sum():.4f}, not 1", column=where)
    return Pmf(np.maximum(values, 1), shares / shares.sum())
