"""`fgnn segment`: label the points of a scan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgnn.cli.complete import complete_device, complete_weights, one_of
from fgnn.errors import InputError, printable

if TYPE_CHECKING:
    import torch

    from fgnn.points import Cloud, Segmenter
    from fgnn.points.segment import Clock, GroundRule
    from fgnn.points.segment_output import Output
    from fgnn.report.segment_page import LabelledScan
    from fgnn.weights import Weights


# Weights for scans, where none are named.
DEFAULT = "lidar-aerial"
_METHODS = ("network", "smrf", "pmf", "csf")


@dataclass(frozen=True)
class SegmentJob:
    """The options that apply to one scan and to every tile of a folder alike."""

    model: str
    method: str
    dtm: Path | None
    dtm_cell: float
    hag: bool
    keep_classification: bool
    units: str
    category: str | None
    device: str
    batch: int | None
    votes: int

    def output(self, scan: Path) -> Output:
        """What is written, in the units of the scan; refuses degrees."""
        from fgnn.points import open_cloud
        from fgnn.points.segment_output import Output
        from fgnn.points.units import UNITS, refuse_degrees, unit_of

        reader = open_cloud(scan)
        if self.units != "auto" and self.units not in UNITS:
            raise InputError(f"Expected --units of {', '.join(UNITS)} or auto (got {printable(self.units)!r})")
        if self.units == "auto":
            refuse_degrees(reader)
        unit = unit_of(reader) if self.units == "auto" else self.units
        if unit != "m":
            print(f"{printable(scan)}: coordinates in {unit}, labelled in metres")
        return Output(not self.keep_classification, self.hag, self.dtm, self.dtm_cell, UNITS[unit])

    def segmenter(self, device: torch.device) -> tuple[Segmenter | GroundRule, Weights | None]:
        """The classical filter or the network, with its weights."""
        from fgnn.models.points.segmenter import load_segmenter
        from fgnn.points.ground import GROUND_FILTERS
        from fgnn.points.segment import GroundRule
        from fgnn.weights import load_weights

        if self.method != "network":
            return GroundRule(GROUND_FILTERS[self.method]), None
        weights = load_weights(self.model)
        return load_segmenter(weights, device, self.batch, self.votes), weights

    def tile(self, scan: Path, around: Sequence[Path], target: Path) -> dict[str, int]:
        """Label one tile of a folder; returns its points per class."""
        from fgnn.points import segment_file
        from fgnn.runtime.devices import pick_device

        segmenter, _ = self.segmenter(pick_device(self.device))
        return segment_file(scan, target, segmenter, output=self.output(scan), around=around)[0]


def segment(
    scan: Annotated[
        Path,
        typer.Argument(
            help="A cloud (.ply .las .laz .pcd .e57 .bin .xyz .txt .csv .npy .npz, or EPT), or a folder of scans."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--weights",
            "-m",
            help="Packaged weights by name, a weights file or a run's folder.",
            autocompletion=complete_weights,
        ),
    ] = DEFAULT,
    method: Annotated[
        str,
        typer.Option(help="network, or a classical ground filter: smrf, pmf or csf.", autocompletion=one_of(*_METHODS)),
    ] = "network",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output file; by default NAME.labelled.SUFFIX. For a folder, another folder."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write an offline viewer of the labelled scan.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Page of counts, confidence and times; with --html, written beside it by default."),
    ] = None,
    dtm: Annotated[Path | None, typer.Option(help="Also write a terrain model of the ground, as GeoTIFF.")] = None,
    dtm_cell: Annotated[float, typer.Option(help="Side of a cell of the terrain model.")] = 1.0,
    hag: Annotated[bool, typer.Option("--hag", help="Add the field height_above_ground.")] = False,
    keep_classification: Annotated[
        bool, typer.Option("--keep-classification", help="Leave the field classification as it is.")
    ] = False,
    units: Annotated[
        str,
        typer.Option(
            help="Of the coordinates: m, ft, us-ft, or auto, as the file states.",
            autocompletion=one_of("auto", "m", "ft", "us-ft"),
        ),
    ] = "auto",
    category: Annotated[str | None, typer.Option(help="Category of the object, for weights that label parts.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=complete_device)] = "auto",
    batch: Annotated[int | None, typer.Option(help="Pieces per batch; by default 64 on a GPU and 8 elsewhere.")] = None,
    votes: Annotated[
        int,
        typer.Option(help="Overlapping tiles that label each point: 4, 2 or 1. Fewer are faster and less accurate."),
    ] = 4,
    jobs: Annotated[int, typer.Option(help="Tiles of a folder that are labelled at a time.")] = 1,
) -> None:
    """Label every point of a scan of any size; the output keeps all fields and adds `label` and `confidence`.

    Weights for airborne scans also write ASPRS codes to `classification`. Points without finite coordinates get label
    255. A folder is labelled tile by tile, each with its neighbours' points near the border.

    Example: fgnn segment scan.laz --html scan.html --dtm ground.tif
    """
    from fgnn.points.cloud import EPT

    _check(batch, votes, jobs, dtm_cell, method)
    job = SegmentJob(model, method, dtm, dtm_cell, hag, keep_classification, units, category, device, batch, votes)
    if (scan / EPT).is_file():
        scan = scan / EPT
    if scan.is_dir():
        for option, value in (("--html", html), ("--dtm", dtm), ("--category", category)):
            if value is not None:
                raise InputError(f"Expected no {option} for a folder (it is written for one scan)")
        _segment_folder(scan, out, report, job, jobs)
    else:
        _segment_one(scan, out, html, report, job)


def _segment_one(scan: Path, out: Path | None, html: Path | None, report: Path | None, job: SegmentJob) -> None:
    """Label one scan, or the parts of one object."""
    from fgnn.points.segment import Clock
    from fgnn.report.segment_page import LabelledScan
    from fgnn.report.viewer import MAX_POINTS
    from fgnn.runtime.devices import pick_device
    from fgnn.weights import load_weights

    target = _target(scan, out)
    if html is not None and report is None:
        report = html.with_suffix(".report.html")
    _check_outputs(
        {"the scan": scan, "the weights": Path(job.model)},
        {"--out": target, "--html": html, "--report": report, "--dtm": job.dtm},
    )
    where = pick_device(job.device)
    clock, start = Clock(), time.perf_counter()
    if job.method == "network" and load_weights(job.model).card.get("categories"):
        weights = load_weights(job.model)
        classes = [str(name) for name in weights.card["classes"]]
        counts, sample = _label_object(scan, target, weights, job.category, where)
    else:
        segmenter, _ = job.segmenter(where)
        classes = list(segmenter.classes)
        keep = MAX_POINTS if html or report else 0
        counts, sample = _label_scan(scan, target, segmenter, keep, clock, job.output(scan))
    seconds = time.perf_counter() - start
    _print_summary(target, counts, seconds, where, clock)
    if job.dtm is not None:
        print(f"{printable(job.dtm)}: terrain model, cells of {job.dtm_cell:g}")
    if sample is not None and (html or report):
        name = job.model if job.method == "network" else job.method.upper()
        result = LabelledScan(scan.name, str(target), name, classes, counts, sample, seconds)
        _write_pages(result, html, report, where)
    print(printable(f"next: {_next(scan, target, html)}"))


def _next(scan: Path, target: Path, html: Path | None) -> str:
    """The command that shows the labels."""
    if html is not None:
        return f"python -m webbrowser {shlex.quote(str(html))}"
    names = (shlex.quote(str(path)) for path in (scan, target, scan.with_suffix(".html")))
    return "fgnn segment {} --out {} --html {}".format(*names)


def _segment_folder(folder: Path, out: Path | None, report: Path | None, job: SegmentJob, jobs: int) -> None:
    """Label the tiles of a folder into another, and print and write one report of all of them."""
    from fgnn.files import check_folder
    from fgnn.points.survey import label_survey
    from fgnn.report.segment_page import write_survey_page
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.environment import environment

    target = out or folder.with_name(f"{folder.name}.labelled")
    if target.resolve() == folder.resolve():
        raise InputError("Expected another folder for --out than that of the scans", file=target)
    target.mkdir(parents=True, exist_ok=True)
    check_folder(target)
    report = report or target / "report.html"
    start, results = time.perf_counter(), []
    for result in label_survey(folder, target, job.tile, jobs):
        results.append(result)
        counts = result.counts
        state = "already there" if counts is None else f"{sum(counts.values()):,} points"
        print(
            f"{printable(result.out)}: {state} ({len(results)} tiles, {time.perf_counter() - start:.1f} s)", flush=True
        )
    seconds = time.perf_counter() - start
    write_survey_page(report, folder.name, results, seconds, environment(pick_device(job.device)))
    points = sum(sum(r.counts.values()) for r in results if r.counts is not None)
    print(f"{printable(target)}: {len(results)} tiles, {points:,} points in {seconds:.1f} s")
    print(f"{printable(report)}: counts of every tile")
    print(printable(f"next: python -m webbrowser {shlex.quote(str(report))}"))


def _target(scan: Path, out: Path | None) -> Path:
    """The file to write, by default beside the scan; reject files that cannot be read or written."""
    from fgnn.files import check_folder
    from fgnn.points import open_cloud
    from fgnn.points.cloud import EPT, check_writable

    open_cloud(scan)
    suffix = {".e57": ".ply", ".json": ".laz"}.get(scan.suffix.lower(), scan.suffix)  # E57 and EPT cannot be written
    name = scan.parent.resolve() if scan.name == EPT else scan.with_suffix("")
    target = out or name.with_name(f"{name.name}.labelled{suffix}")
    check_writable(target)
    check_folder(target.parent)
    return target


def _check_outputs(inputs: dict[str, Path], outputs: dict[str, Path | None]) -> None:
    """Reject files that cannot be written, or that would overwrite an input or each other, before the work begins."""
    from fgnn.files import check_folder, same_file

    taken = dict(inputs)
    for option, file in outputs.items():
        if file is None:
            continue
        for other, path in taken.items():
            if same_file(file, path):
                raise InputError(f"Expected another file for {option} than {other}", file=file)
        if file.is_dir():
            raise InputError(f"Expected a file for {option} (got a folder)", file=file)
        if not file.parent.is_dir():
            raise InputError("no such folder", file=file.parent)
        check_folder(file.parent)
        taken[option] = file


def _check(batch: int | None, votes: int, jobs: int, dtm_cell: float, method: str) -> None:
    """Reject bad options before the work begins."""
    if method not in _METHODS:
        raise InputError(f"Expected --method of {', '.join(_METHODS)} (got {printable(method)!r})")
    if jobs < 1:
        raise InputError(f"Expected --jobs of at least 1 (got {jobs})")
    if not 0 < dtm_cell < float("inf"):
        raise InputError(f"Expected --dtm-cell above 0 (got {dtm_cell})")
    if batch is not None and batch < 1:
        raise InputError(f"Expected --batch of at least 1 (got {batch})")
    if votes not in (1, 2, 4):
        raise InputError(f"Expected --votes of 1, 2 or 4 (got {votes})")


def _label_object(
    scan: Path, target: Path, weights: Weights, category: str | None, device: torch.device
) -> tuple[dict[str, int], Cloud | None]:
    """Label the parts of one object; returns points per class and the labelled cloud."""
    import numpy as np

    from fgnn.models.points.segmenter import segment as segment_object
    from fgnn.points import read_cloud, write_cloud
    from fgnn.points.cloud import check_storable

    cloud = read_cloud(scan)
    blank = np.zeros(len(cloud), np.uint8)
    check_storable(cloud, cloud.with_fields(label=blank, confidence=blank), target)
    labelling = segment_object(cloud, weights, category=category, device=device)
    cloud = cloud.with_fields(label=labelling.label, confidence=labelling.confidence)
    write_cloud(cloud, target)
    return labelling.counts, cloud


def _label_scan(
    scan: Path, target: Path, segmenter: Segmenter | GroundRule, keep: int, clock: Clock, output: Output
) -> tuple[dict[str, int], Cloud | None]:
    """Label a scan with a progress bar; returns points per class and a sample of about ``keep`` points."""
    from fgnn.points import segment_file
    from fgnn.runtime.progress import ProgressBar

    bar = ProgressBar(wait=True)
    stage_now, began = "", 0.0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal stage_now, began
        share = done / total if total else 1.0
        if stage != stage_now:
            stage_now, began = stage, time.perf_counter()
        left = (time.perf_counter() - began) * (1 / share - 1) if share > 0 else None
        bar.update(f"{stage:<10} {100 * share:5.1f} %  {done:,} of {total:,} points", done, total, left)

    result = segment_file(scan, target, segmenter, progress, keep=keep, clock=clock, output=output)
    bar.close()
    return result


def _print_summary(target: Path, counts: dict[str, int], seconds: float, device: torch.device, clock: Clock) -> None:
    total = sum(counts.values())
    for name, number in counts.items():
        print(f"{printable(name):<20} {number:>12,}")
    speed = f"{total / max(seconds, 1e-9):,.0f} points/s, {device}"
    print(f"{printable(target)}: {total:,} points in {seconds:.1f} s ({speed})")
    if any(clock.seconds.values()):
        print("seconds: " + ", ".join(f"{stage} {taken:.2f}" for stage, taken in clock.seconds.items()))


def _write_pages(result: LabelledScan, html: Path | None, report: Path | None, device: torch.device) -> None:
    """Write the viewer and the page of counts, confidence and times."""
    from fgnn.report import write_viewer
    from fgnn.report.segment_page import write_segment_page
    from fgnn.runtime.environment import environment

    if html is not None:
        label, confidence = result.sample.fields["label"], result.sample.fields["confidence"]
        write_viewer(result.sample, label, html, result.classes, confidence, title=result.title, totals=result.counts)
        print(f"{printable(html)}: open it in a browser")
    if report is not None:
        write_segment_page(report, result, environment(device))
        print(f"{printable(report)}: counts, confidence and times")
