"""The files that a run leaves for people and scripts: metrics.jsonl, metrics.csv and summary.json.

metrics.jsonl is the record; metrics.csv holds the same rows for a spreadsheet and is made anew from it when needed. A
number that is not finite has no place in JSON: it is written as null, and `"nonfinite": {"loss": "nan"}` in the same
row says what it was, so that a loss that diverged stays distinct from a value that does not exist. Floats are written
with all their digits: reading gives the same bits.
"""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfdetr_train.atomic_file import replacing
from rfdetr_train.errors import UserError

METRICS_NAME = "metrics.jsonl"
TABLE_NAME = "metrics.csv"
SUMMARY_NAME = "summary.json"
EVALUATION_NAME = "evaluation.json"
SHOWN_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")
"""Those of COCO's twelve that tables and pages have room for."""


class MetricsFiles:
    """Writes every row to metrics.jsonl and metrics.csv; continues files that are there."""

    def __init__(self, run_dir: Path | str):
        self._metrics = Path(run_dir, METRICS_NAME)
        self._table = Path(run_dir, TABLE_NAME)
        self._columns: list[str] = []
        if self._metrics.exists():
            self._rewrite(self.rows())

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one row, such as `{"split": "train", "step": 12, "loss": 0.5, "lr": {"decoder": 1e-4}}`.

        Values are plain Python ones. The row is on disk, as far as the system's buffers, when this returns.
        """
        row = _finite_record(record)
        _append(self._metrics, _json_line(row))
        flat = flatten(row)
        new_columns = [key for key in flat if key not in self._columns]
        if new_columns:
            self._columns += new_columns
            _write_text(self._table, csv_text(self._columns, read_metrics(self._metrics)))
        else:
            _append(self._table, csv_text(self._columns, [flat], header=False))

    def rows(self) -> list[dict]:
        """All rows so far."""
        return read_metrics(self._metrics)

    def truncate_after(self, step: int, evaluation_pending: bool = False) -> None:
        """Drop the rows that a run resumed after `step` will write again: later steps, and a pending evaluation."""

        def is_over(row: dict) -> bool:
            pending = evaluation_pending and row.get("split") == "valid" and row["step"] == step
            return row.get("step", 0) <= step and not pending

        if self._metrics.exists():
            self._rewrite([row for row in self.rows() if is_over(row)])

    def _rewrite(self, rows: list[dict]) -> None:
        self._columns = list(dict.fromkeys(key for row in rows for key in flatten(row)))
        _write_text(self._metrics, "".join(_json_line(row) for row in rows))
        _write_text(self._table, csv_text(self._columns, rows))


def read_metrics(path: Path | str) -> list[dict]:
    """The rows of a metrics.jsonl, without a last line that a crash cut short; none where there is no file.

    Raises UserError for any other line that is not a JSON object.
    """
    lines = Path(path).read_bytes().split(b"\n") if Path(path).is_file() else []
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parsed(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise UserError(f"{path}:{number}: not a JSON object; mend or remove the line")
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty where there is none. Raises UserError for what is no JSON."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: is no JSON ({error}); remove it") from error
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object such as summary.json, atomically; non-finite numbers as in metrics.jsonl."""
    text = json.dumps(_finite_record(content), indent=2, ensure_ascii=False, allow_nan=False)
    _write_text(path, text + "\n")


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as `lr/decoder`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        else:
            flat[prefix + key] = value
    return flat


def _parsed(line: bytes) -> dict | None:
    try:
        row = json.loads(line)
    except ValueError:  # cut JSON or cut UTF-8
        return None
    return row if isinstance(row, dict) else None


def _finite_record(record: Mapping[str, Any]) -> dict:
    """The record with null for what is not finite, and what that was under "nonfinite"."""
    nonfinite: dict[str, str] = {}
    finite = _finite(record, "", nonfinite)
    return finite | {"nonfinite": nonfinite} if nonfinite else finite


def _finite(value: Any, key: str, nonfinite: dict[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): _finite(inner, f"{key}/{name}" if key else str(name), nonfinite) for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_finite(inner, f"{key}/{index}", nonfinite) for index, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite[key] = str(float(value))
        return None
    return value


def _json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(columns: list[str], rows: list[dict], header: bool = True) -> str:
    """Lines of CSV, nested objects as in `flatten`; empty where a row has no value."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(flatten(row) for row in rows)
    return buffer.getvalue()


def _encoded(text: str) -> bytes:
    """UTF-8; the lone surrogates of undecodable file names become \\udcXX, which JSON reads back."""
    return text.encode("utf-8", "backslashreplace")


def _append(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(_encoded(text))


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(_encoded(text))
