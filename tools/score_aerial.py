"""Score the classifier of airborne scans by folds: `python -m tools.score_aerial SCANS RUNS OUT`.

Every scan is labelled by the network that held out its region, with the rule for ground that `tools.fit_fusion` fitted
without it. ``OUT`` is a JSON file with the errors of ground of each
method and the confusion of classes of each scan; methods it already has are not run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from fgnn.data.aerial import CODES, FOLDS, is_ground, read_all
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points import Cloud, Segmenter, confusion, ground_score, scene_score, segment_cloud
from fgnn.points.ground import GROUND_FILTERS
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import log_line
from fgnn.weights import load_weights, save_weights
from tools.train_aerial import NAME

Method = Callable[[Cloud], tuple[NDArray[np.bool_], NDArray[np.integer[Any]] | None]]


def network(segmenter: Segmenter, votes: Path) -> Method:
    """The ground and the classes that a network finds; its votes are in a file if `tools.fit_fusion` kept them."""
    ground = list(segmenter.classes).index("ground")

    def run(cloud: Cloud) -> tuple[NDArray[np.bool_], NDArray[np.integer[Any]] | None]:
        kept = np.load(votes) if votes.is_file() else None
        label = segment_cloud(cloud, segmenter, votes=kept).label
        return label == ground, label

    return run


def best(run: Path) -> Path:
    """The weights of a run, with the rule of `tools.fit_fusion` if it has one."""
    fused = run / "fused.safetensors"
    return fused if fused.is_file() else run / "last.safetensors"


def classical(method: str) -> Method:
    """The ground that a classical filter finds at its defaults."""
    return lambda cloud: (GROUND_FILTERS[method](cloud.xyz), None)


def score(cloud: Cloud, method: Method, timed: bool = True) -> dict[str, Any]:
    """Errors of ground, the time taken, and the confusion of classes where the method tells them."""
    start = time.perf_counter()
    found, label = method(cloud)
    seconds = time.perf_counter() - start
    given = cloud.fields["classification"]
    truth, known = is_ground(given)
    result: dict[str, Any] = asdict(ground_score(truth[known], found[known]))
    result |= {"seconds": round(seconds, 2)} if timed else {}
    if label is not None:
        codes = list(CODES.values())
        target = np.full(len(cloud), -1)
        for n, code in enumerate(codes):
            target[given == code] = n
        result["confusion"] = confusion(target, label, len(codes)).tolist()
    return result


def summary(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean and median of the total error of each method, over all scans and over the ISPRS samples."""
    out: dict[str, dict[str, float]] = {}
    for method in sorted({m for scan in results.values() for m in scan}):
        total = {name: scan[method]["total"] for name, scan in results.items() if method in scan}
        isprs = [t for name, t in total.items() if name.startswith("samp")]
        rest = [t for name, t in total.items() if not name.startswith("samp")]
        out[method] = {"scans": len(total), "mean": float(np.mean(list(total.values())))}
        out[method]["median"] = float(np.median(list(total.values())))
        for key, values in (("isprs", isprs), ("rest", rest)):
            if values:
                out[method] |= {f"{key}_mean": float(np.mean(values)), f"{key}_median": float(np.median(values))}
    return out


def write(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Write the scores with their summary; returns them."""
    about = environment("cpu") | {"command": "python -m tools.score_aerial SCANS RUNS OUT"}  # without local paths
    stored = {"environment": about, "summary": summary(results), "iou": class_ious(results), "results": results}
    with atomic_write(out) as file:
        json.dump(stored, file)
    return stored


def with_scores(weights: Path, out: Path, stored: dict[str, Any]) -> None:
    """Write the weights again with the codes of their classes and the scores of the folds on their card."""
    loaded = load_weights(weights)
    scans = {name: {m: round(s["total"], 5) for m, s in scan.items()} for name, scan in stored["results"].items()}
    scored = {"summary": stored["summary"], "total_error": scans, "class_iou": stored["iou"]}
    # those of the run are of pieces it was trained on
    metrics = {f"iou {name}": value for name, value in scored["class_iou"]["all"].items()}
    metrics["ground total error"] = stored["summary"][NAME]["mean"]
    card = dict(loaded.card) | {"name": NAME, "codes": list(CODES.values()), "metrics": metrics}
    card["cross_validation"] = scored
    save_weights(out, loaded.tensors, card)


def class_ious(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """IoU of each class, pooled over all scans and over each fold; without classes that do not occur."""
    out = {}
    groups = {"all": [name for fold in FOLDS for name in fold]} | {f"fold-{n}": list(f) for n, f in enumerate(FOLDS)}
    groups["towns"] = [name for name in groups["all"] if name.endswith("_town")]
    for group, names in groups.items():
        found = [results[name][NAME]["confusion"] for name in names if NAME in results.get(name, {})]
        if found:
            counts = np.sum(found, axis=0)
            iou = scene_score(counts).iou
            out[group] = {c: round(float(iou[k]), 4) for k, c in enumerate(CODES) if counts[k].sum()}
    return out


def main(
    scans: Annotated[Path, typer.Argument(help="The folder with isprs_filtertest_ground.npz, .laz files and aerial/.")],
    runs: Annotated[Path, typer.Argument(help="The folder of tools.train_aerial, with fold-0 to fold-4.")],
    out: Path,
    methods: Annotated[list[str] | None, typer.Option("--method", help="Of the classical filters and network.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these scans.")] = None,
    card: Annotated[Path | None, typer.Option(help="Write the weights of the run `all` here, with the scores.")] = None,
) -> None:
    """Score methods on scans of regions that no network saw in training."""
    stored = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"results": {}}
    results: dict[str, Any] = stored["results"]
    clouds = read_all(scans)
    for fold, names in enumerate(FOLDS):
        chosen = [name for name in names if not only or name in only]
        for method in methods or [NAME, *GROUND_FILTERS]:
            missing = [name for name in chosen if method not in results.get(name, {})]
            segmenter = None if method in GROUND_FILTERS or not missing else load_segmenter(best(runs / f"fold-{fold}"))
            for name in missing:
                file = runs / "votes" / f"{name}.npy"
                run = classical(method) if segmenter is None else network(segmenter, file)
                timed = segmenter is None or not file.is_file()
                results.setdefault(name, {})[method] = score(clouds[name], run, timed)
                found = results[name][method]
                log_line(f"{method} {name}: total {100 * found['total']:.2f} %")
                stored = write(out, results)
    stored = write(out, results)
    if card is not None:
        with_scores(best(runs / "all"), card, stored)
    print(json.dumps({key: stored[key] for key in ("summary", "iou")}, indent=1))


if __name__ == "__main__":
    typer.run(main)
