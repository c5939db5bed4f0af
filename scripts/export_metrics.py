#!/usr/bin/env python3
"""Exports the metrics of a run to TensorBoard events or a Weights & Biases run.

    scripts/export_metrics.py [RUN_DIR]               # RUN_DIR/tensorboard/, for: tensorboard --logdir runs
    scripts/export_metrics.py [RUN_DIR] --wandb       # RUN_DIR/wandb/, an offline run, for: wandb sync

Reads RUN_DIR/metrics.jsonl, also during the run; a repeated export replaces TensorBoard's events. Every number of a record is a series KIND/NAME
by step, such as train/loss, val/loss or layer_norms/grad/h.0; values that are not finite have no point. Samples and the run's options are texts.
Needs the Python package tensorboard, or wandb for --wandb.
"""
import json
import math
import os
import pathlib
import shutil
import sys

from run_metrics import MetricsError, OneLineParser, RunMetrics, newest_run, number, one_line, one_line_errors, valid  # beside this script

DEEPEST = 8  # depth of nested objects in a record


def numbers(record, path=""):
    """(name, value) of every number in a record except kind and step; a nested one is named "a/b"."""
    for key, value in record.items():
        if isinstance(value, dict):
            if path.count("/") < DEEPEST:
                yield from numbers(value, f"{path}{key}/")
        elif not math.isnan(number(value)) and (path or key != "step"):
            yield valid(path + key), number(value)


def scalars(run):
    """[(step, {series: value})] in the order of steps."""
    by_step = {}
    for kind, records in run.by_kind.items():
        for count, record in enumerate(records, 1):
            series = by_step.setdefault(record["step"], {})
            series.update({f"{kind}/{name}": value for name, value in numbers(record)})
            if kind == "skipped":
                series["skipped/count"] = float(count)
    return sorted(by_step.items())


def texts(run):
    """[(step, series, text)]: the run's options and its samples."""
    found = []
    if run.header:
        found.append((0, "run", "```\n" + json.dumps({k: v for k, v in run.header.items() if k != "kind"}, indent=1) + "\n```"))
    for record in run.by_kind.get("sample", []):
        if isinstance(record.get("text"), str):
            found.append((record["step"], "sample", record["text"]))
    return found


def times(run):
    """The time of each step, in seconds. The last step ended when the file was last written; each took its step_ms."""
    durations = run.seconds()
    time = run.file.stat().st_mtime - sum(durations)
    at = {0: time}
    for step, duration in zip(run.steps("train"), durations):
        time += duration
        at[step] = time
    return lambda step: at.get(step, time)


def check_replaceable(out):
    """Raises an error if the folder holds anything other than TensorBoard's events, so that it is not replaced."""
    if not out.name or out.name == "..":
        raise MetricsError(f"--out {out}: expected the name of a folder")
    foreign = sorted(file.name for file in out.iterdir() if "tfevents" not in file.name) if out.is_dir() else []
    if foreign:
        raise MetricsError(f"--out {out}: holds {foreign[0]}, which would be lost; expected a new folder, or one that holds only TensorBoard's events")


def write_tensorboard(run, out):
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise MetricsError(f"{error}; install TensorBoard with: pip install tensorboard") from error
    check_replaceable(out)
    time = times(run)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    writer = EventFileWriter(str(temporary))
    try:
        for step, series in scalars(run):
            values = [Summary.Value(tag=name, simple_value=value) for name, value in series.items()]
            writer.add_event(Event(wall_time=time(step), step=step, summary=Summary(value=values)))
        for step, name, text in texts(run):
            tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode(errors="replace")], tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]))
            value = Summary.Value(tag=f"{name}/text_summary", metadata=create_summary_metadata(name, ""), tensor=tensor)
            writer.add_event(Event(wall_time=time(step), step=step, summary=Summary(value=[value])))
        writer.close()
        shutil.rmtree(out, ignore_errors=True)
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def write_wandb(run, project):
    try:
        import wandb
    except ImportError as error:
        raise MetricsError(f"{error}; install Weights & Biases with: pip install wandb") from error
    try:
        exported = wandb.init(project=project, name=run.name, dir=str(run.folder), mode="offline", config=run.options())
        for step, series in scalars(run):
            exported.log(series, step=step)
        for _, name, text in texts(run):
            exported.summary[name] = text  # a later text replaces an earlier one
        exported.finish()
    except OSError:
        raise
    except Exception as error:  # the packages raise errors of their own types
        raise MetricsError(f"wandb: {one_line(error)}") from error
    return run.folder / "wandb"


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", nargs="?", metavar="RUN_DIR", help="a folder that holds metrics.jsonl (default: the newest under runs/)")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, help="for TensorBoard's events (default: RUN_DIR/tensorboard)")
    parser.add_argument("--wandb", action="store_true", help="an offline run of Weights & Biases instead")
    parser.add_argument("--project", default="flatgpt", help="of Weights & Biases (default: flatgpt)")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="surrogateescape")  # a file's name can contain any bytes
    with one_line_errors():
        run = RunMetrics(arguments.run or newest_run())
        print(write_wandb(run, arguments.project) if arguments.wandb else write_tensorboard(run, arguments.out or run.folder / "tensorboard"))


if __name__ == "__main__":
    main()
