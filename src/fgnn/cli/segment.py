"""`fgnn segment`: label a scan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


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
    from fgnn.errors import InputError
    from fgnn.files import check_folder
    from fgnn.models.points.segmenter import load_segmenter
    from fgnn.models.points.segmenter import segment as segment_object
    from fgnn.points.cloud import FORMATS, Cloud, open_cloud, read_cloud, write_cloud
    from fgnn.points.segment import Clock, segment_file
    from fgnn.report.segment_page import write_segment_page
    from fgnn.report.viewer import MAX_POINTS, write_viewer
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.environment import environment
    from fgnn.runtime.progress import ProgressBar
    from fgnn.weights import load_weights

    open_cloud(scan)  # what is no scan is said first
    suffix = ".ply" if scan.suffix.lower() == ".e57" else scan.suffix  # E57 is read, not written
    target = out or scan.with_name(f"{scan.stem}.labelled{suffix}")
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"Expected a cloud in {' '.join(FORMATS)} for --out (got '{target.suffix}')")
    if target.exists() and scan.exists() and target.samefile(scan):
        raise InputError("Expected another file for --out than the scan itself", file=target)
    if batch is not None and batch < 1:
        raise InputError(f"Expected --batch of at least 1 (got {batch})")
    if votes not in (1, 2, 4):
        raise InputError(f"Expected --votes of 1, 2 or 4 (got {votes})")
    for file in (target, html):  # before the work, not after it
        if file is not None and file.parent.is_dir():
            check_folder(file.parent)
    where = pick_device(device)
    start = time.perf_counter()
    card = load_weights(model).card
    bar, clock = ProgressBar(wait=True), Clock()

    def progress(stage: str, done: int, total: int) -> None:
        share = done / total if total else 1.0
        bar.update(f"{stage:<10} {100 * share:5.1f} %  {done:,} of {total:,} points", done, total)

    if card.get("categories"):
        cloud = read_cloud(scan)
        found = segment_object(cloud, model, category=category, device=where)
        shown = cloud.with_fields(label=found.label, confidence=found.confidence)
        write_cloud(shown, target)
        counts = found.counts
        sample: Cloud | None = shown
    else:
        keep = MAX_POINTS if html is not None or report is not None else 0
        segmenter = load_segmenter(model, where, batch, votes)
        counts, kept = segment_file(scan, target, segmenter, progress, keep=keep, clock=clock)
        sample = kept if kept is not None or not keep else read_cloud(target)  # an empty scan keeps nothing
    bar.close()
    seconds = time.perf_counter() - start
    total = sum(counts.values())
    for name, number in counts.items():
        print(f"{name:<20} {number:>12,}")
    print(f"{target}: {total:,} points in {seconds:.1f} s ({total / max(seconds, 1e-9):,.0f} points/s, {where})")
    if any(clock.seconds.values()):
        print("seconds: " + ", ".join(f"{stage} {taken:.2f}" for stage, taken in clock.seconds.items()))
    names = [str(n) for n in card["classes"]]
    if html is not None and sample is not None:
        report = report or html.with_suffix(".report.html")
        label, confidence = sample.fields["label"], sample.fields["confidence"]
        title = f"{scan.name}, labelled by {model}"
        write_viewer(sample, label, html, names, confidence, title=title, totals=counts)
        print(f"{html}: open it in a browser")
    if report is not None and sample is not None:
        write_segment_page(
            report, scan=scan.name, out=str(target), model=model, classes=names, counts=counts,
            label=sample.fields["label"], confidence=sample.fields["confidence"], seconds=seconds,
            environment=environment(where),
        )  # fmt: skip
        print(f"{report}: counts, confidence and times")
