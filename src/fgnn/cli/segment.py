"""`fgnn segment`: label the points of a scan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgnn.errors import InputError, printable

if TYPE_CHECKING:
    import torch

    from fgnn.points import Cloud, Segmenter
    from fgnn.points.segment import Clock
    from fgnn.report.segment_page import LabelledScan
    from fgnn.weights import Weights


def segment(
    scan: Annotated[Path, typer.Argument(help="A cloud: .ply .las .laz .pcd .e57 .xyz .txt .csv .npy .npz.")],
    model: Annotated[
        str,
        typer.Option("--model", "--weights", "-m", help="Packaged weights by name, a weights file or a run's folder."),
    ] = "lidar-ground",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output file; by default NAME.labelled.SUFFIX (.ply for .e57)."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write an offline viewer of the labelled scan.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Page of counts, confidence and times; with --html, written beside it by default."),
    ] = None,
    category: Annotated[str | None, typer.Option(help="Category of the object, for weights that label parts.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    batch: Annotated[int | None, typer.Option(help="Pieces per batch; by default 64 on a GPU and 8 elsewhere.")] = None,
    votes: Annotated[
        int,
        typer.Option(help="Overlapping tiles that label each point: 4, 2 or 1. Fewer are faster and less accurate."),
    ] = 4,
) -> None:
    """Label every point of a scan of any size; the output keeps all fields and adds `label` and `confidence`.

    Points without finite coordinates get label 255.

    Example: fgnn segment scan.laz --model lidar-ground --html scan.html
    """
    from fgnn.models.points.segmenter import load_segmenter
    from fgnn.points.segment import Clock
    from fgnn.report.segment_page import LabelledScan
    from fgnn.report.viewer import MAX_POINTS
    from fgnn.runtime.devices import pick_device
    from fgnn.weights import load_weights

    target = _target(scan, out)
    _check(batch, votes)
    if html is not None and report is None:
        report = html.with_suffix(".report.html")
    _check_outputs(
        {"the scan": scan, "the weights": Path(model)}, {"--out": target, "--html": html, "--report": report}
    )
    where = pick_device(device)
    clock, start = Clock(), time.perf_counter()
    weights = load_weights(model)
    if weights.card.get("categories"):
        counts, sample = _label_object(scan, target, weights, category, where)
    else:
        segmenter = load_segmenter(weights, where, batch, votes)
        counts, sample = _label_scan(scan, target, segmenter, MAX_POINTS if html or report else 0, clock)
    seconds = time.perf_counter() - start
    _print_summary(target, counts, seconds, where, clock)
    if sample is not None and (html or report):
        classes = [str(name) for name in weights.card["classes"]]
        result = LabelledScan(scan.name, str(target), model, classes, counts, sample, seconds)
        _write_pages(result, html, report, where)


def _target(scan: Path, out: Path | None) -> Path:
    """The file to write, by default beside the scan; reject files that cannot be read or written."""
    from fgnn.files import check_folder
    from fgnn.points import open_cloud
    from fgnn.points.cloud import check_writable

    open_cloud(scan)
    suffix = ".ply" if scan.suffix.lower() == ".e57" else scan.suffix  # E57 cannot be written
    target = out or scan.with_name(f"{scan.stem}.labelled{suffix}")
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


def _check(batch: int | None, votes: int) -> None:
    """Reject bad options before the work begins."""
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
    scan: Path, target: Path, segmenter: Segmenter, keep: int, clock: Clock
) -> tuple[dict[str, int], Cloud | None]:
    """Label a scan with a progress bar; returns points per class and a sample of about ``keep`` points."""
    from fgnn.points import segment_file
    from fgnn.runtime.progress import ProgressBar

    bar = ProgressBar(wait=True)

    def progress(stage: str, done: int, total: int) -> None:
        share = done / total if total else 1.0
        bar.update(f"{stage:<10} {100 * share:5.1f} %  {done:,} of {total:,} points", done, total)

    result = segment_file(scan, target, segmenter, progress, keep=keep, clock=clock)
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
