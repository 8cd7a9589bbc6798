#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small Parquet and Arrow files, and beside each the rows that pyarrow reads from it, as JSON Lines.

    pip install pyarrow
    tools/oracle/make_arrow_golden.py tests/golden/records/arrow

Where JSON has no form for a value, the rows hold what Stepforge documents: null for NaN and infinities, texts for dates, times
and decimals.
"""
import datetime
import decimal
import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["plain", 'quote " and \\ and / and \n\t\x01\x7f', "häßlich 漢字 🙂", "", None]


def kinds(in_parquet):
    """A table with a column of every accepted type; its first row is cut off, so arrays begin at an offset."""
    tools = [{"name": "f", "arguments": [{"key": "x", "value": 1.5}, None]}]
    messages = [[{"role": "user", "content": "hi", "tools": None}, {"role": "assistant", "content": None, "tools": tools}], [], None]
    days = [datetime.date(2026, 1, 31), None, datetime.date(1969, 12, 31), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
    noon = [datetime.datetime(2026, 1, 31, 12, 0, 1, 5), datetime.datetime(1901, 2, 3), None, None, datetime.datetime(2000, 2, 29)]
    clock = [datetime.time(23, 59, 58), None, datetime.time(0, 0), datetime.time(1, 2, 3), None]
    money = [decimal.Decimal("12.50"), decimal.Decimal("-0.01"), None, decimal.Decimal("0.00"), decimal.Decimal("99999.99")]
    columns = {
        "bool": pa.array([True, False, None, True, False]),
        "f16": pa.array([1.5, -0.0, None, 65504.0, float("inf")], pa.float16()),
        "f32": pa.array([0.1, 1e10, None, float("nan"), -2.0], pa.float32()),
        "f64": pa.array([0.1, 1e300, 100000.0, float("-inf"), None]),
        "text": pa.array(TEXTS),
        "large_text": pa.array(TEXTS, pa.large_string()),
        "word": pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
        "list": pa.array([["a", None], [], None, ["b"], ["c", "d"]], pa.list_(pa.string())),
        "large_list": pa.array([[1], None, [], [2, 3], [4]], pa.large_list(pa.int32())),
        "pair": pa.array([[1.0, 2.0], None, [3.0, 4.0], [5.0, None], [7.0, 8.0]], pa.list_(pa.float64(), 2)),
        "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}, {"a": 2, "b": {"c": None}}, None]),
        "messages": pa.array([*messages, messages[0], []]),
        "map": pa.array([[("x", 1), ("y", None)], [], None, [("", 3)], None], pa.map_(pa.string(), pa.int64())),
        "day": pa.array(days, pa.date32()),
        "day_ms": pa.array(days, pa.date64()),
        "second": pa.array([None if t is None else t.replace(microsecond=0) for t in noon], pa.timestamp("s")),
        "utc": pa.array(noon, pa.timestamp("us", "UTC")),
        "clock": pa.array(clock, pa.time32("ms")),
        "clock_us": pa.array(clock, pa.time64("us")),
        "money": pa.array(money, pa.decimal128(7, 2)),
        "wide_money": pa.array(money, pa.decimal256(60, 2)),
        "nothing": pa.nulls(5),
        "Name, \"quoted\"": pa.array(range(5)),
    }
    for bits in (8, 16, 32, 64):
        ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, None, 0, 1]
        columns[f"i{bits}"] = pa.array(ends, getattr(pa, f"int{bits}")())
        columns[f"u{bits}"] = pa.array([2**bits - 1, 0, None, 1, 2], getattr(pa, f"uint{bits}")())
    if not in_parquet:
        columns["view"] = pa.array(["short", "long enough to lie in a buffer of its own", None, "", "x"], pa.string_view())
        columns["json"] = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "[]", "1", '"x"']))
        columns["words"] = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1, 1], pa.int8()), columns["list"].slice(3))
    table = pa.table(columns)
    return pa.concat_tables([table.slice(4), table]).slice(1)


def as_json(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [as_json(member) for member in value]
    if isinstance(value, dict):
        return {key: as_json(member) for key, member in value.items()}
    return value


def is_written_as_text(kind):
    return pa.types.is_temporal(kind) or pa.types.is_decimal(kind)


def rows_of(table):
    columns = [column.cast(pa.string()) if is_written_as_text(column.type) else column for column in table.columns]
    columns = [column.combine_chunks().storage if isinstance(column.type, pa.BaseExtensionType) else column for column in columns]
    return as_json(pa.table(columns, table.column_names).to_pylist(maps_as_pydicts="strict"))


def write_rows(path, table):
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(table)]
    path.with_name(path.name + ".jsonl").write_text("".join(lines))


def write_parquet(path, table, **options):
    pq.write_table(table, path, **{"write_page_checksum": True, "row_group_size": 2, **options})
    write_rows(path, pq.read_table(path, partitioning=None))


def write_ipc(path, table, stream, codec=None):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    write_rows(path, (pa.ipc.open_stream if stream else pa.ipc.open_file)(path).read_all())


def broken_text():
    """Texts, of which the fourth is not UTF-8."""
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 4, 8, 8, 10, 14))
    return pa.StringArray.from_buffers(5, pa.py_buffer(offsets), pa.py_buffer(b"goodgood\xff\xfegood"))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / "kinds.parquet", kinds(in_parquet=True), store_schema=True)
    write_parquet(folder / "kinds_plain.parquet", kinds(in_parquet=True), store_schema=False, use_dictionary=False,
                  data_page_version="2.0", compression="none")
    write_ipc(folder / "kinds.arrow", kinds(in_parquet=False), stream=False)
    write_ipc(folder / "kinds.arrows", kinds(in_parquet=False), stream=True)
    texts = pa.table({"text": [f"row {i}, " + "again and " * 9 for i in range(5)], "n": range(5)})
    for codec in ("snappy", "gzip", "brotli", "zstd", "lz4"):
        write_parquet(folder / f"{codec}.parquet", texts, compression=codec)
    for codec in ("lz4", "zstd"):
        write_ipc(folder / f"{codec}.arrow", texts, stream=True, codec=codec)
    write_parquet(folder / "empty.parquet", texts.slice(0, 0))
    write_ipc(folder / "empty.arrow", texts.slice(0, 0), stream=False)
    write_ipc(folder / "empty.arrows", texts.slice(0, 0), stream=True)
    binary = pa.table({"text": ["a"], "image": [{"bytes": b"\x00", "path": "x.png"}]})
    pq.write_table(binary, folder / "binary.parquet")
    broken = pa.table({"n": range(5), "text": broken_text()})
    pq.write_table(broken, folder / "not_utf8.parquet")
    with pa.ipc.new_stream(folder / "not_utf8.arrow", broken.schema) as writer:
        writer.write_table(broken, max_chunksize=2)


if __name__ == "__main__":
    main()
