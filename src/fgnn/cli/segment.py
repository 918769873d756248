"""`fgnn segment`: label a scan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgnn.errors import InputError

if TYPE_CHECKING:
    from fgnn.points.cloud import Cloud
    from fgnn.report.segment_page import LabelledScan


def segment(
    scan: Annotated[Path, typer.Argument(help="A cloud: .ply .las .laz .pcd .e57 .xyz .txt .csv .npy .npz.")],
    model: Annotated[
        str,
        typer.Option("--model", "--weights", "-m", help="Packaged weights by name, a weights file or a run's folder."),
    ] = "lidar-ground",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The labelled scan; by default NAME.labelled.SUFFIX (.ply for .e57)."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page that shows the labelled scan offline.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="A page of counts, confidence and times; with --html it lies beside that one."),
    ] = None,
    category: Annotated[str | None, typer.Option(help="What the object is, for weights that label parts.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    batch: Annotated[
        int | None, typer.Option(help="Pieces labelled at once; by default 64 on a GPU and 8 elsewhere.")
    ] = None,
    votes: Annotated[
        int, typer.Option(help="Overlapping tiles that label each point: 4, 2 or 1. Fewer are quicker and worse.")
    ] = 4,
) -> None:
    """Label every point of a scan of any size; all its fields are kept, `label` and `confidence` are added.

    Points without finite coordinates get label 255.

    Example: fgnn segment scan.laz --model lidar-ground --html scan.html
    """
    from fgnn.models.points.segmenter import load_segmenter
    from fgnn.models.points.segmenter import segment as segment_object
    from fgnn.points.cloud import read_cloud, write_cloud
    from fgnn.points.segment import Clock, segment_file
    from fgnn.report.segment_page import LabelledScan
    from fgnn.report.viewer import MAX_POINTS
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.environment import environment
    from fgnn.runtime.progress import ProgressBar
    from fgnn.weights import load_weights

    target = _target(scan, out)
    _check(target, html, batch, votes)
    where = pick_device(device)
    start = time.perf_counter()
    weights = load_weights(model)
    bar, clock = ProgressBar(wait=True), Clock()

    def progress(stage: str, done: int, total: int) -> None:
        share = done / total if total else 1.0
        bar.update(f"{stage:<10} {100 * share:5.1f} %  {done:,} of {total:,} points", done, total)

    sample: Cloud | None
    if weights.card.get("categories"):
        cloud = read_cloud(scan)
        labelling = segment_object(cloud, weights, category=category, device=where)
        cloud = cloud.with_fields(label=labelling.label, confidence=labelling.confidence)
        write_cloud(cloud, target)
        counts, sample = labelling.counts, cloud
    else:
        keep = MAX_POINTS if html is not None or report is not None else 0
        segmenter = load_segmenter(weights, where, batch, votes)
        counts, sample = segment_file(scan, target, segmenter, progress, keep=keep, clock=clock)
    bar.close()
    seconds = time.perf_counter() - start
    total = sum(counts.values())
    for name, number in counts.items():
        print(f"{name:<20} {number:>12,}")
    print(f"{target}: {total:,} points in {seconds:.1f} s ({total / max(seconds, 1e-9):,.0f} points/s, {where})")
    if any(clock.seconds.values()):
        print("seconds: " + ", ".join(f"{stage} {taken:.2f}" for stage, taken in clock.seconds.items()))
    if sample is not None and (html is not None or report is not None):
        classes = [str(name) for name in weights.card["classes"]]
        result = LabelledScan(scan.name, str(target), model, classes, counts, sample, seconds)
        _write_pages(result, html, report, environment(where))


def _target(scan: Path, out: Path | None) -> Path:
    """The file to write, by default beside the scan."""
    from fgnn.points.cloud import FORMATS, open_cloud

    open_cloud(scan)  # reject non-scans early
    suffix = ".ply" if scan.suffix.lower() == ".e57" else scan.suffix  # E57 cannot be written
    target = out or scan.with_name(f"{scan.stem}.labelled{suffix}")
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"Expected a cloud in {' '.join(FORMATS)} for --out (got '{target.suffix}')")
    if target.exists() and scan.exists() and target.samefile(scan):
        raise InputError("Expected another file for --out than the scan itself", file=target)
    return target


def _check(target: Path, html: Path | None, batch: int | None, votes: int) -> None:
    """Reject bad options and folders before the work begins."""
    from fgnn.files import check_folder

    if batch is not None and batch < 1:
        raise InputError(f"Expected --batch of at least 1 (got {batch})")
    if votes not in (1, 2, 4):
        raise InputError(f"Expected --votes of 1, 2 or 4 (got {votes})")
    for file in (target, html):
        if file is not None and file.parent.is_dir():
            check_folder(file.parent)


def _write_pages(result: LabelledScan, html: Path | None, report: Path | None, environment: dict[str, Any]) -> None:
    """Write the viewer and the page of counts, confidence and times."""
    from fgnn.report.segment_page import write_segment_page
    from fgnn.report.viewer import write_viewer

    if html is not None:
        label, confidence = result.sample.fields["label"], result.sample.fields["confidence"]
        write_viewer(result.sample, label, html, result.classes, confidence, title=result.title, totals=result.counts)
        print(f"{html}: open it in a browser")
        report = report or html.with_suffix(".report.html")
    if report is not None:
        write_segment_page(report, result, environment)
        print(f"{report}: counts, confidence and times")
