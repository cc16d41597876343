"""Result files, read into runs of our words and written in any format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchsuite.foreign.glossary import COUNTED, FORMATS, SCALES, TIMES, WORDS, OwnPlace, Word, unit_factor
from benchsuite.machine.user_files import UserFileError, parsed_json, user_text
from specdec.errors import SpecdecError, unknown
from specdec_plugins.endpoints.server_metrics import added, read_body, read_page

KNOWN = {"aiperf": "1.4", "guidellm": "2"}
"""The versions of formats that say one; another version is read too, and noted."""


@dataclass(frozen=True)
class ForeignRun:
    """One run of a file: its name, its figures by our words, the paths of what was not read, and notes on the rest."""

    name: str
    figures: Mapping[str, Any]
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForeignFile:
    """A result file: its format, the version that it says, its runs, and notes on how it was read."""

    format: str
    version: str | None
    runs: tuple[ForeignRun, ...]
    notes: tuple[str, ...] = ()


def read_file(path: Path) -> ForeignFile:
    """Return a file's runs; its format is recognised by its content.

    Takes ``vllm bench serve --save-result``'s, AIPerf's ``profile_export_aiperf.json``, GuideLLM's ``benchmarks.json``,
    our ``benchmark.json`` and ``--benchmark-json``, and a server's ``/metrics`` page. Raises SpecdecError for anything
    else, and for figures that are no numbers. Example: ``read_file(Path("benchmarks.json")).runs[0].figures``.
    """
    try:
        text = user_text(path)
    except UserFileError as error:
        raise SpecdecError(f"{error}; expected {_expected()}") from None
    try:
        if not text.lstrip().startswith(("{", "[")):
            said = read_page(text)
            figures = {name: value for name, value in said.figures().items() if value is not None}
            return ForeignFile(said.source, None, (ForeignRun("server", figures),), said.notes)
        return _joined([read_result(content) for content in _contents(text)])
    except SpecdecError as error:
        raise SpecdecError(f"{path}: {error}") from None
    except UserFileError as error:
        raise SpecdecError(f"{path} is no JSON ({error}); expected {_expected()}") from None


def read_result(content: Any) -> ForeignFile:
    """Return the runs of parsed JSON; as ``read_file``."""
    format_ = _recognised(content)
    version, runs = READERS[format_](content)
    known = KNOWN.get(format_)
    notes = []
    if known and version != known:
        said = f"version {version}" if version else "no version"
        notes.append(f"{FORMATS[format_]} says {said} of its format; {known} is known here, and names may have changed")
    runs = [_timed(run) for run in runs]
    if not any(run.figures for run in runs):
        raise SpecdecError(
            f"the file is {FORMATS[format_]}'s and holds no figure that is known here: did its run fail?"
        )
    notes += [f"{run.name}: {note}" for run in runs for note in run.notes]
    return ForeignFile(format_, version, tuple(runs), tuple(notes))


def chosen(found: ForeignFile, name: str) -> ForeignFile:
    """Return a file with one of its runs alone. Raises SpecdecError, with the names, if it has none of this name."""
    runs = tuple(run for run in found.runs if run.name == name)
    if not runs:
        raise unknown("run", name, [run.name for run in found.runs])
    return replace(found, runs=runs)


def write_result(found: ForeignFile, format_: str) -> tuple[Any, list[str]]:
    """Return the content of a file in another format, and the figures that have no place there.

    Raises SpecdecError if the format holds one run, and there are several. What other programs want beside the
    figures is not made up: AIPerf's model loads such a file, GuideLLM's does not.
    """
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    runs = found.runs
    if format_ == "ours":
        return _ours(found, runs), []
    if format_ != "guidellm" and len(runs) > 1:
        names = ", ".join(run.name for run in runs)
        raise SpecdecError(
            f"a file of {FORMATS[format_]} holds one run, and there are {len(runs)}: add --run with {names}"
        )
    written = [_written(run, format_) for run in runs]
    lost = [f"{run.name}: {name} = {run.figures[name]}" for run in runs for name in _placeless(run, format_)]
    if format_ == "guidellm":
        benchmarks = [{"type_": "generative_benchmark", **content} for content in written]
        return {"metadata": {"version": int(KNOWN["guidellm"])}, "benchmarks": benchmarks}, lost
    return ({"schema_version": KNOWN["aiperf"], **written[0]} if format_ == "aiperf" else written[0]), lost


def _contents(text: str) -> list[Any]:
    """The results of a file: one, or one a line, as programs write them that append each run."""
    try:
        return [parsed_json(text)]
    except UserFileError:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parsed_json(line))
        except UserFileError as error:
            raise UserFileError(f"result {number}: {error}") from None
    return found


def _joined(found: Sequence[ForeignFile]) -> ForeignFile:
    """The runs of all results of a file, each under a name of its own."""
    if len(found) == 1:
        return found[0]
    formats = {one.format for one in found}
    if len(formats) > 1:
        raise SpecdecError(f"its lines are results of {', '.join(sorted(formats))}; expected those of one program")
    runs = [run for one in found for run in one.runs]
    names = Counter(run.name for run in runs)
    runs = [
        replace(run, name=f"{run.name} {number}" if names[run.name] > 1 else run.name)
        for number, run in enumerate(runs, 1)
    ]
    notes = dict.fromkeys(note for one in found for note in one.notes)
    return ForeignFile(found[0].format, found[0].version, tuple(runs), tuple(notes))


def _timed(run: ForeignRun) -> ForeignRun:
    """The run without latencies of 0, which programs write where no request was answered or nothing was streamed."""
    latencies = [word.name for word in WORDS if word.unit in TIMES and word.name != "duration_s"]
    none = [name for name in latencies if run.figures.get(name) == 0]
    figures = {name: value for name, value in run.figures.items() if name not in none}
    notes = (f"{', '.join(none)}: 0 is no time; nothing was measured",) if none else ()
    return replace(run, figures=figures, notes=(*run.notes, *notes))


def _expected() -> str:
    return "a result file of " + ", ".join(FORMATS.values()) + ", or a server's /metrics page"


def _recognised(content: Any) -> str:
    """The format of a file, by keys that no other format has."""
    if isinstance(content, Mapping):
        benchmarks = content.get("benchmarks")
        first = benchmarks[0] if isinstance(benchmarks, list) and benchmarks else None
        if isinstance(first, Mapping) and "metrics" in first:
            return "guidellm"
        if isinstance(first, Mapping) and "extra_info" in first:
            return "ours"
        if isinstance(content.get("rows"), list):
            return "ours"
        if "aiperf_version" in content or "schema_version" in content:
            return "aiperf"
        if "total_output_tokens" in content or any(str(key).startswith("spec_decode_") for key in content):
            return "vllm"
    keys = ", ".join(map(str, content))[:80] if isinstance(content, Mapping) else type(content).__name__
    raise SpecdecError(f"the file has {keys or 'nothing'}; expected {_expected()}")


def _of_vllm(content: Mapping[str, Any]) -> tuple[str | None, list[ForeignRun]]:
    return None, [_read(str(content.get("label") or content.get("model_id") or "vllm"), content, "vllm")]


def _of_aiperf(content: Mapping[str, Any]) -> tuple[str | None, list[ForeignRun]]:
    run = content.get("run_info")
    label = run.get("run_label") if isinstance(run, Mapping) else None
    name = str(label or content.get("benchmark_id") or "aiperf")
    return str(content.get("schema_version") or "") or None, [_read(name, content, "aiperf")]


def _of_guidellm(content: Mapping[str, Any]) -> tuple[str | None, list[ForeignRun]]:
    metadata = content.get("metadata")
    version = metadata.get("version") if isinstance(metadata, Mapping) else None
    runs = []
    for number, benchmark in enumerate(content["benchmarks"]):
        _mapping(benchmark, f"benchmarks.{number}")
        strategy = _at(benchmark, "config.strategy.type_")
        run = _read(f"{number} {strategy}" if strategy else str(number), benchmark, "guidellm")
        spoken, notes = _spoken(_at(benchmark, "requests.successful"), run.figures.get("requests"))
        runs.append(ForeignRun(run.name, {**run.figures, **spoken}, run.left, notes))
    return None if version is None else str(version), runs


def _spoken(answered: Any, total: int | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """GuideLLM sums nothing of speculation; it hands on what the server said of each request that it kept."""
    kept = [one for one in answered if isinstance(one, Mapping)] if isinstance(answered, list) else []
    said = [found for one in kept if (found := read_body({"metrics": one.get("response_metrics")}))]
    whole = added(said)
    if whole is None:
        return {}, ()
    if len(said) < len(kept):
        return {}, (f"{len(said)} of {len(kept)} requests say something of speculation; they were not summed",)
    notes = whole.notes
    if total is not None and len(said) < total:
        notes = (f"speculation is that of the {len(said)} of {total} requests that the file keeps", *notes)
    return {name: value for name, value in whole.figures().items() if value is not None}, notes


def _of_ours(content: Mapping[str, Any]) -> tuple[str | None, list[ForeignRun]]:
    """``benchmark.json`` keeps rows; pytest-benchmark's JSON keeps each row as the extra_info of a benchmark."""
    if "rows" in content:
        rows = [(str(_at(row, "row") or number), row) for number, row in enumerate(content["rows"])]
    else:
        rows = [
            (str(_at(one, "name") or number), _at(one, "extra_info"))
            for number, one in enumerate(content["benchmarks"])
        ]
    runs = []
    for name, row in rows:
        _mapping(row, name)
        figures = {
            word.name: _figure(word, value, word.name) for word in WORDS if (value := _at(row, word.name)) is not None
        }
        left = [path for path in _leaves(row) if not any(_covers(word.name, path) for word in WORDS) and path != "row"]
        runs.append(ForeignRun(name, figures, tuple(left)))
    return None, runs


READERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str | None, list[ForeignRun]]]] = {
    "vllm": _of_vllm,
    "aiperf": _of_aiperf,
    "guidellm": _of_guidellm,
    "ours": _of_ours,
}
"""How each format is read: its version, and its runs."""


def _read(name: str, content: Mapping[str, Any], format_: str) -> ForeignRun:
    """The figures of one run, in our units."""
    figures: dict[str, Any] = {}
    for word in WORDS:
        place = word.places.get(format_)
        value = _at(content, place.path) if place else None
        if place and value is not None:
            figures[word.name] = _converted(word, place, value, _scale(content, word, place, format_), figures)
    paths = [word.places[format_].path for word in WORDS if format_ in word.places]
    units = {f"{path.partition('.')[0]}.unit" for path in paths} if format_ == "aiperf" else set[str]()
    left = [path for path in _leaves(content) if path not in units and not any(_covers(one, path) for one in paths)]
    return ForeignRun(name, figures, tuple(left))


def _scale(content: Mapping[str, Any], word: Word, place: OwnPlace, format_: str) -> float:
    """What the file's numbers are times ours: AIPerf says the unit of each metric."""
    metric = content.get(place.path.partition(".")[0])
    said = metric.get("unit") if format_ == "aiperf" and isinstance(metric, Mapping) else None
    if said is None or said == place.unit:
        return place.factor
    factor = unit_factor(word.unit, str(said))
    if factor is None:
        units = ", ".join((place.unit, *SCALES))
        raise SpecdecError(f"{place.path} is in {said!r}, which is not known here; expected one of {units}")
    return factor


def _converted(word: Word, place: OwnPlace, value: Any, factor: float, figures: Mapping[str, Any]) -> Any:
    if not place.per:
        scaled = _figure(word, value, place.path)
        return scaled if isinstance(scaled, dict | list) or factor == 1 else scaled / factor
    whole = figures.get(place.per)
    if not isinstance(value, list) or whole is None:
        raise SpecdecError(f"{place.path} holds shares of {place.per}, which the file lacks; expected both")
    counts = [_number(share, place.path) * whole for share in value]
    if any(abs(count - round(count)) > 1e-6 * max(1, whole) for count in counts):
        raise SpecdecError(f"{place.path} times {whole} gives no whole numbers: {counts}; was the file edited?")
    return [round(count) for count in counts]


def _figure(word: Word, value: Any, path: str) -> Any:
    """A value as a word's figure; a number, a list of counts, or counts by name."""
    if isinstance(value, list) and word.name.endswith("per_pos"):
        return [_count(one, path) for one in value]
    if isinstance(value, Mapping) and word.name.endswith("histogram"):
        return {str(name): _count(one, path) for name, one in value.items()}
    return _count(value, path) if word.unit in COUNTED else _number(value, path)


def _number(value: Any, path: str) -> float:
    """A finite number of 0 or more. JSON's own numbers may still be too large for a float."""
    try:
        sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    except OverflowError:  # a whole number beyond all floats
        sound = False
    if not sound:
        raise SpecdecError(f"{path} is {value!r}; expected a finite number of 0 or more. Look at the run that wrote it")
    found: float = value
    return found


def _count(value: Any, path: str) -> int:
    if _number(value, path) != int(value):
        raise SpecdecError(f"{path} is {value!r}; expected a whole number. Look at the run that wrote it")
    return int(value)


def _written(run: ForeignRun, format_: str) -> dict[str, Any]:
    """The figures of one run where a format keeps them, in its units."""
    content: dict[str, Any] = {}
    for word in WORDS:
        place, value = word.places.get(format_), run.figures.get(word.name)
        if place is None or value is None or word.name in _placeless(run, format_):
            continue
        if place.per:
            value = [count / run.figures[place.per] for count in value]
        elif place.factor != 1:
            value = value * place.factor
        *above, last = place.path.split(".")
        holder = content
        for key in above:
            holder = holder.setdefault(key, {})
        if format_ == "aiperf" and above:
            holder["unit"] = place.unit
        holder[last] = value
    return content


def _placeless(run: ForeignRun, format_: str) -> list[str]:
    """The words that a run has and a format does not, or cannot without another one."""
    places = {word.name: word.places.get(format_) for word in WORDS}
    return [
        name
        for name in run.figures
        if (place := places[name]) is None or (place.per and not run.figures.get(place.per))
    ]


def _ours(found: ForeignFile, runs: Sequence[ForeignRun]) -> dict[str, Any]:
    """Rows as in ``benchmark.json``; ``converted`` says of what they were made, and what was not read of it."""
    rows = []
    for run in runs:
        row: dict[str, Any] = {"row": run.name}
        for name, value in run.figures.items():
            group, dot, last = name.rpartition(".")
            (row.setdefault(group, {}) if dot else row)[last] = value
        rows.append(row)
    source = {"format": found.format, "version": found.version, "notes": list(found.notes)}
    return {"rows": rows, "converted": {**source, "not_read": {run.name: list(run.left) for run in runs}}}


def _mapping(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise SpecdecError(f"{where} is {str(value)[:40]!r}; expected an object with figures")


def _at(content: Any, path: str) -> Any:
    """The value at keys joined by dots; None if there is none."""
    for key in path.split("."):
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _leaves(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The paths of all values but nulls; a list is one value."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}"


def _covers(place: str, path: str) -> bool:
    return path == place or path.startswith(f"{place}.")
